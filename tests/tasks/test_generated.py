"""What must hold for every generated task: seeded, never too long, nearly full, needles where they are said to be."""

import json
import random
import re
from dataclasses import replace

import pytest

from winnow.errors import InputError
from winnow.tasks import Haystack, render, task
from winnow.tasks.multi_needle import MultiNeedle
from winnow.tasks.variables import Variables

GENERATED = ["passkey", "number", "kv", "kv_list", "multi_needle", "variables"]
RECORDS = ("kv", "kv_list")  # pairs fill the context
RECORD = 24  # more than the tokens of one key-value pair


def build(name, tokenizer, tokens, seed=0, depth=0.5, **parameters):
    return task(name, **parameters).example(random.Random(seed), tokens=tokens, tokenizer=tokenizer, depth=depth)


@pytest.mark.parametrize("name", GENERATED)
def test_same_seed_same_example(name, tokenizer):
    assert build(name, tokenizer, 512, depth=None) == build(name, tokenizer, 512, depth=None)
    assert build(name, tokenizer, 512) != build(name, tokenizer, 512, seed=1)


@pytest.mark.parametrize("tokens", [192, 777, 4096, 20_000])
@pytest.mark.parametrize("name", GENERATED)
def test_prompt_fills_the_tokens_and_never_exceeds_them(name, tokens, tokenizer):
    few = {"pairs": 4} if name == "kv_list" and tokens < 400 else {}  # 16 and their question do not fit
    for seed in range(4):
        length = len(render(build(name, tokenizer, tokens, seed, depth=None, **few), tokenizer))
        assert tokens - (RECORD if name in RECORDS else 16) <= length <= tokens


@pytest.mark.parametrize("name", GENERATED)
def test_length_is_exact_without_a_chat_template_too(name, tokenizer):
    plain = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer)
    assert plain.chat_template is None
    example = build(name, plain, 600)
    assert 600 - RECORD <= len(plain(example.prompt)["input_ids"]) == len(render(example, plain)) <= 600


@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("name", ["passkey", "number", "kv"])
def test_needle_stands_at_the_wanted_depth(name, depth, tokenizer):
    example = build(name, tokenizer, 4096, depth=depth)
    assert example.depths[0] == pytest.approx(depth, abs=0.03)
    place = example.context.index(example.answers[0]) / len(example.context)
    assert place == pytest.approx(depth, abs=0.05)
    assert example.depths[0] in (0.0, 1.0) or depth not in (0.0, 1.0)


@pytest.mark.parametrize("name", ["multi_needle", "kv_list", "variables"])
def test_every_needle_stands_where_its_depth_says(name, tokenizer):
    example = build(name, tokenizer, 4096)
    assert len(example.depths) == len(example.answers) > 1
    for answer, depth in zip(example.answers, example.depths, strict=True):
        needle = f" {answer}." if name == "variables" else answer
        assert example.context.index(needle) / len(example.context) == pytest.approx(depth, abs=0.01)


@pytest.mark.parametrize("name", GENERATED)
def test_reply_scores_full_and_fits_its_tokens(name, tokenizer):
    example = build(name, tokenizer, 512)
    assert task(name).score(example, example.reply) == 1
    assert len(tokenizer(example.reply)["input_ids"]) < example.max_tokens
    assert task(name).score(example, "I do not know.") == 0


@pytest.mark.parametrize("wrong", ["1{}", "{}1", "x{}", "{}-7"])
@pytest.mark.parametrize("name", ["passkey", "number", "kv"])
def test_a_longer_number_is_not_the_answer(name, wrong, tokenizer):
    example = build(name, tokenizer, 512)
    assert task(name).score(example, f"It is {wrong.format(example.answers[0])}.") == 0
    assert task(name).score(example, f"It is {example.answers[0]}, I think") == 1


def test_needles_are_scored_one_by_one(tokenizer):
    example = build("multi_needle", tokenizer, 512)
    half = " ".join(example.answers[:2]).replace("code of", "code\nof")
    assert task("multi_needle").score(example, half) == 0.5
    assert task("multi_needle").score(example, example.answers[0].replace("secret ", "")) == 0


def test_pairs_are_json_and_the_key_occurs_once(tokenizer):
    example = build("kv", tokenizer, 4096)
    pairs = json.loads(example.context)
    key = example.question.split('"')[1]
    assert pairs[key] == example.answers[0]
    assert example.context.count(f'"{key}"') == 1
    assert len(pairs) > 150


def test_listed_pairs_are_spread_over_the_object_and_asked_for_in_another_order(tokenizer):
    example = build("kv_list", tokenizer, 4096)
    pairs = json.loads(example.context)
    keys = re.findall('"(.*?)"', example.question)
    assert len(set(keys)) == 16
    assert json.loads("{" + example.reply + "}") == {key: pairs[key] for key in keys}
    assert example.reply.replace(",\n ", "|").split("|") == list(example.answers)
    places = sorted(example.depths)
    assert places != list(example.depths)
    for index, depth in enumerate(places):
        assert depth == pytest.approx((index + 0.5) / 16, abs=0.03)


def test_every_pair_is_asked_for_where_the_object_holds_no_others(tokenizer):
    with pytest.raises(InputError) as error:
        build("kv_list", tokenizer, 10, pairs=3)
    least = int(str(error.value).rsplit(" ", 1)[1])
    example = build("kv_list", tokenizer, least, pairs=3)
    assert sorted(json.loads(example.context)) == sorted(re.findall('"(.*?)"', example.question))


def test_a_listed_value_counts_only_beside_its_key(tokenizer):
    example = build("kv_list", tokenizer, 1024, pairs=2)
    first, second = (answer.split(": ") for answer in example.answers)
    swapped = f"{first[0]}: {second[1]},\n {second[0]}: {first[1]}"
    assert task("kv_list").score(example, swapped) == 0
    assert task("kv_list").score(example, f"{first[0]}:\n{first[1]}, {second[0]}: {first[1]}") == 0.5


def test_variables_follow_their_chain(tokenizer):
    example = Variables(chains=3, hops=3).example(random.Random(0), tokens=2048, tokenizer=tokenizer)
    value = example.question.split("value ")[1].split("?")[0]
    assert example.context.count(value) == 1
    assert list(example.depths) == sorted(example.depths)
    assert len(example.answers) == 4


@pytest.mark.parametrize("name", GENERATED)
def test_too_few_tokens_name_the_minimum(name, tokenizer):
    with pytest.raises(InputError, match=r"10 tokens are too few .* at least (\d+)") as error:
        build(name, tokenizer, 10)
    least = int(str(error.value).rsplit(" ", 1)[1])
    assert len(render(build(name, tokenizer, least), tokenizer)) <= least


def test_own_haystack_fills_the_context(tokenizer):
    example = build("passkey", tokenizer, 500, haystack=Haystack.from_text("Grass is green. The sky is blue. "))
    assert example.context.count("The sky is blue.") > 20
    assert len(example.context.split()) < 400


def test_unknown_names_and_parameters_are_refused():
    with pytest.raises(InputError, match="passkey"):
        task("paskey")
    with pytest.raises(InputError, match="colour"):
        task("passkey", colour="red")
    with pytest.raises(InputError, match="needles=0"):
        MultiNeedle(needles=0)
    with pytest.raises(InputError, match="pairs=0"):
        task("kv_list", pairs=0)
    with pytest.raises(InputError, match="chains=0"):
        replace(Variables(), chains=0)
