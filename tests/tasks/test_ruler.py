"""RULER's families over real text: what is asked is there, both forms ask with other words, and scores are shares."""

import random
import re
from collections import Counter

import pytest

from winnow.errors import InputError
from winnow.tasks import Haystack, render, task
from winnow.tasks.common_words import COMMON
from winnow.tasks.frequent_words import ASKED, frequencies
from winnow.tasks.niah import Niah

NEEDLES = ("niah_single", "niah_words", "niah_uuids", "niah_multikey", "niah_multivalue", "niah_multiquery")
COUNTED = ("common_words", "frequent_words")
FAMILIES = (*NEEDLES, *COUNTED)


def build(name, tokenizer, tokens, seed=0, **parameters):
    return task(name, **parameters).example(random.Random(seed), tokens=tokens, tokenizer=tokenizer)


@pytest.mark.parametrize("form", [0, 1])
@pytest.mark.parametrize("name", FAMILIES)
def test_seeded_nearly_full_never_too_long_and_the_reply_scores_full(name, form, tokenizer):
    for tokens in (512, 2000):
        for seed in range(3):
            example = build(name, tokenizer, tokens, seed, form=form)
            assert example == build(name, tokenizer, tokens, seed, form=form)
            assert tokens - 24 <= len(render(example, tokenizer)) <= tokens
            asked = task(name, form=form)
            assert asked.score(example, example.reply) == 1
            assert asked.score(example, "I do not know.") == 0
            assert asked.score(example, example.answers[0]) == pytest.approx(1 / len(example.answers))
            assert len(tokenizer(example.reply)["input_ids"]) < example.max_tokens
            assert tokenizer.decode(render(example, tokenizer)).endswith(example.opening)
            assert example.opening


@pytest.mark.parametrize(
    ("name", "needles", "asked"),
    [("niah_single", 1, 1), ("niah_multikey", 4, 1), ("niah_multivalue", 4, 4), ("niah_multiquery", 4, 4)],
)
def test_needles_stand_in_the_text_and_only_some_are_asked_for(name, needles, asked, tokenizer):
    example = build(name, tokenizer, 2000)
    assert len(re.findall(r"One of the special magic numbers for \S+ is: \d{7}\.", example.context)) == needles
    assert len(example.answers) == len(example.depths) == asked
    for answer in example.answers:
        assert example.context.count(answer) == 1
    keys = set(re.findall(r"\w+-\w+", example.question))
    assert len(keys) == {"niah_multiquery": 4}.get(name, 1)
    assert keys <= set(re.findall(r"numbers for (\S+) is", example.context))


@pytest.mark.parametrize("name", FAMILIES)
def test_forms_share_no_wording_and_no_key(name, tokenizer):
    words, told = [set(), set()], [set(), set()]
    for form in (0, 1):
        for seed in range(40):
            example = build(name, tokenizer, 600, seed, form=form)
            keys = example.answers if name in COUNTED else re.findall(r"\b[a-z]+-[a-z]+\b", example.question)
            words[form] |= set(keys)
            told[form] |= {re.sub(r"\b[a-z]+-[a-z]+\b|\d+", "", example.question), example.context[:60]}
    assert words[0]
    assert words[1]
    assert not words[0] & words[1]
    assert not told[0] & told[1]


@pytest.mark.parametrize("tokens", range(200, 331, 10))
def test_texts_that_are_nearly_too_short_hold_few_words(tokens, tokenizer):
    assert len(render(build("common_words", tokenizer, tokens), tokenizer)) <= tokens


@pytest.mark.parametrize("tokens", [512, 4096])
def test_common_words_come_more_often_than_all_others(tokens, tokenizer):
    example = build("common_words", tokenizer, tokens)
    counts = Counter(re.findall(r"\d+\. (\w+)", example.context))
    most = counts.most_common(COMMON + 1)
    assert {word for word, _ in most[:COMMON]} == set(example.answers)
    assert most[COMMON - 1][1] >= 2 * most[COMMON][1]
    listed = re.findall(r"(\d+)\. ", example.context)
    assert listed == [str(number) for number in range(1, sum(counts.values()) + 1)]


@pytest.mark.parametrize("tokens", [512, 4096])
def test_frequent_words_are_the_three_most_frequent_and_the_text_is_real(tokens, tokenizer):
    example = build(
        "frequent_words", tokenizer, tokens, haystack=Haystack.from_text("Grass is green. The sky is blue. ")
    )
    counts = Counter(re.findall(r"\[(\w+)\]", example.context))
    assert [word for word, _ in counts.most_common(ASKED)] == list(example.answers)
    assert sorted(counts.values(), reverse=True) == frequencies(max(12, tokens // 100))
    assert "The sky is blue." in example.context


def test_variables_have_a_form_of_rulers_own_wording(tokenizer):
    first, second = (build("variables", tokenizer, 600, form=form) for form in (0, 1))
    assert all(len(name) == 3 for name in first.answers)
    assert all(len(name) == 5 for name in second.answers)
    assert f"VAR {second.answers[1]} = VAR {second.answers[0]}." in second.context
    assert task("variables", form=1).score(second, second.reply) == 1


def test_what_cannot_be_is_refused(tokenizer):
    with pytest.raises(InputError, match="queries=2"):
        Niah(queries=2)
    with pytest.raises(InputError, match="value='colours'"):
        Niah(value="colours")
    for name in (*FAMILIES, "variables"):
        with pytest.raises(InputError, match="form=2"):
            task(name, form=2)
    with pytest.raises(InputError, match="different words"):
        build("common_words", tokenizer, 600, haystack=Haystack.from_text("Grass is green. The sky is blue. "))


@pytest.mark.parametrize("name", FAMILIES)
def test_case_does_not_count(name, tokenizer):
    example = build(name, tokenizer, 512)
    assert task(name).score(example, example.reply.upper()) == task(name).score(example, example.reply.lower()) == 1
