"""When a step is slow: the golden vector, every clause of the sentence trigger, and boundaries in vocabularies."""

import random

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from models import small_model
from slowfast_reference import Rules
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, SamplingParams
from winnow.errors import PlanError
from winnow.policies.read.trigger import Boundaries, Chance, Never, Periodic, Sentence, boundaries_of
from winnow.runtime.loading import load

GOLDEN = "ab.\n\ncd.ef. ghijklmnopqrstuv?!wx"
LATIN = Boundaries(frozenset(map(ord, ".?!")), frozenset(), frozenset([ord("\n")]))


def sentence(interval=99, min_gap=1, cooldown=0, on="start", boundaries=LATIN):
    return Sentence(boundaries, interval, min_gap, cooldown, on)


def slow(trigger, text):
    """The steps, from 1, that are slow when the characters of a text are fed."""
    return [step for step, letter in enumerate(text, 1) if trigger.fires(ord(letter))]


@pytest.mark.parametrize(("min_gap", "interval", "expected"), [(4, 12, [6, 12, 24, 31]), (1, 99, [6, 12, 31])])
def test_golden_vector(min_gap, interval, expected):
    assert slow(sentence(interval, min_gap, cooldown=2), GOLDEN) == expected


def test_a_sentence_starts_with_the_token_after_its_end():
    assert slow(sentence(), "ab.cd?ef!gh") == [4, 7, 10]
    assert slow(sentence(), "ab.") == []


def test_ends_and_line_ends_start_no_sentence():
    assert slow(sentence(), "ab...\n\n\n!\ncd") == [11]


@pytest.mark.parametrize(("cooldown", "expected"), [(0, [3, 5]), (1, [3]), (5, [3])])
def test_an_end_right_after_a_start_is_swallowed(cooldown, expected):
    """The token that starts a sentence sets the cooldown again, and the tokens after it count it down."""
    assert slow(sentence(cooldown=cooldown), "a.b.cdefgh") == expected


def test_an_end_counts_again_when_the_cooldown_is_over():
    for gap in range(6):
        text = "a.b" + "x" * gap + ".yz"
        assert slow(sentence(cooldown=3), text) == ([3, gap + 5] if gap >= 3 else [3])


def test_a_start_too_early_is_dropped_and_not_put_off():
    assert slow(sentence(min_gap=4), "abcd.efg.hijklmnop") == [6, 10]
    assert slow(sentence(min_gap=5), "abcd.efg.hijklmnop") == [6]
    assert slow(sentence(min_gap=6), "abc.d" + "x" * 20) == []


def test_the_interval_counts_from_the_last_slow_step_of_any_kind():
    assert slow(sentence(interval=5), "abc.d" + "x" * 12) == [5, 10, 15]
    assert slow(sentence(interval=5), "abcdefg.h" + "x" * 12) == [5, 9, 14, 19]


def test_a_gap_counts_from_a_slow_step_of_the_interval_too():
    assert slow(sentence(interval=6, min_gap=4), "abcdefg.hijk") == [6, 12]
    assert slow(sentence(interval=6, min_gap=3), "abcdefg.hijk") == [6, 9]


def test_a_step_that_was_slow_in_any_case_counts_too():
    trigger = sentence(interval=5)
    assert slow(trigger, "abc") == []
    trigger.refreshed()
    assert slow(trigger, "defghij") == [5]


def test_with_end_the_token_that_ends_a_sentence_is_slow():
    assert slow(sentence(on="end"), "ab.cd?ef") == [3, 6]
    assert slow(sentence(on="end", cooldown=2), "ab...cd.efghi.") == [3, 8, 14]
    assert slow(sentence(on="end", min_gap=6), "ab.cd?efghi!x?") == [6, 12]
    assert slow(sentence(on="end", interval=4), "abcdefgh.ij") == [4, 8, 9]


def test_pairs_end_a_sentence_together():
    pairs = Boundaries(frozenset(), frozenset([(ord("."), ord(" "))]), frozenset(map(ord, " \n")))
    assert slow(sentence(boundaries=pairs), "3.14 is. So") == [10]
    assert slow(sentence(boundaries=pairs, on="end"), "3.14 is. So") == [9]
    assert slow(sentence(boundaries=pairs), ". . a") == [3, 5]


@pytest.mark.parametrize("seed", range(30))
def test_any_text_equals_the_rules_clause_by_clause(seed):
    source = random.Random(seed)
    text = source.choices("ab .?!\n", k=300)
    parts = [frozenset(".?!"), frozenset([("!", "\n"), ("a", "b")]), frozenset("\n" + source.choice(["", " "]))]
    interval, cooldown, on = source.randint(1, 30), source.randint(0, 4), source.choice(["start", "end"])
    min_gap = source.randint(1, interval)
    enders, pairs, skipped = parts
    known = Boundaries(
        frozenset(map(ord, enders)), frozenset((ord(a), ord(b)) for a, b in pairs), frozenset(map(ord, skipped))
    )
    trigger = Sentence(known, interval, min_gap, cooldown, on)
    rules = Rules(*parts, interval, min_gap, cooldown, on)
    for letter in text:
        forced = source.random() < 0.05
        got = trigger.fires(ord(letter))
        if forced and not got:
            trigger.refreshed()
        assert (got or forced) == rules.slow(letter, forced)


def test_periodic_is_every_so_many_steps():
    assert slow(Periodic(4), "x" * 13) == [4, 8, 12]
    trigger = Periodic(4)
    assert slow(trigger, "xx") == []
    trigger.refreshed()
    assert slow(trigger, "xxxxxx") == [2, 6]  # the period goes on
    assert slow(Periodic(1), "xxx") == [1, 2, 3]


def test_chance_has_the_rate_and_is_the_same_for_a_seed():
    steps = [slow(Chance(8, random.Random(seed)), "x" * 8000) for seed in (0, 0, 1)]
    assert steps[0] == steps[1] != steps[2]
    assert all(850 < len(each) < 1150 for each in steps)
    assert slow(Chance(1, random.Random(0)), "x" * 50) == list(range(1, 51))


def test_never_is_never():
    assert slow(Never(), GOLDEN) == []


def test_byte_level_boundaries():
    """Of the CJK marks a byte is no token by itself."""
    tokenizer, found = byte_tokenizer(), boundaries_of(byte_tokenizer())
    of = {text: tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text))[0] for text in [*".?! \n\t\rax0"]}
    assert found.enders == {of["."], of["?"], of["!"]}
    assert {of[" "], of["\n"], of["\t"], of["\r"]} <= found.skipped
    assert not {of["a"], of["x"], of["0"], 0, 1, 2} & found.skipped
    assert found.pairs == {(of[mark], of[" "]) for mark in ".?!"}


def sentencepiece_tokenizer():
    """With a meta symbol for spaces, pieces for bytes, and merged ends."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [
        "▁",
        ".",
        "?",
        "!",
        "▁a",
        "a",
        "b",
        "▁.",
        ".\n",
        "。",
        "！",
        "？\n\n",
        "?!",
        "...",
        ".)",
        '."',
        "▁▁",
        "x.",
        "1.",
    ]
    tokenizer = Tokenizer(
        models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def test_sentencepiece_boundaries():
    """A space before a mark is part of its text, so that such a token is none; a byte of a mark is the mark."""
    tokenizer = sentencepiece_tokenizer()
    found, id_of = boundaries_of(tokenizer), tokenizer.convert_tokens_to_ids
    enders = [".", "?", "!", ".\n", "。", "！", "？\n\n", "?!", "...", "<0x2E>", "<0x3F>", "<0x21>"]
    assert found.enders == set(map(id_of, enders))
    assert {id_of(piece) for piece in ("▁", "▁▁", "<0x20>", "<0x0A>", "<0x09>")} <= found.skipped
    assert not {id_of(piece) for piece in ("a", "▁a", ".", "▁.", "<s>")} & found.skipped
    marks = [".", "?", "!", "。", "！", "<0x2E>", "<0x3F>", "<0x21>"]
    spaced = {(id_of(mark), id_of(space)) for mark in marks for space in ("▁", "<0x20>")}
    assert found.pairs == spaced | {(id_of("！"), id_of("<0x0A>"))}


def character_tokenizer(letters):
    model = models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[])
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_character_boundaries():
    letters = "ab。？！.?! \n\t,"
    found = boundaries_of(character_tokenizer(letters))
    at = {letter: i for i, letter in enumerate(letters)}
    assert found.enders == {at[mark] for mark in "。？！.?!"}
    assert found.skipped == {at[letter] for letter in " \n\t"}
    spaced = {(at[mark], at[" "]) for mark in "。？！.?!"}
    assert found.pairs == spaced | {(at["！"], at["\n"])}


def test_a_vocabulary_without_letters():
    letters = "0123456789。\n"
    found = boundaries_of(character_tokenizer(letters))
    assert found.enders == {10}
    assert found.skipped == {11}


def test_boundaries_of_the_bundled_model():
    """Whatever is an end decodes to one, and every such token of the vocabulary is known."""
    tokenizer = load("needle", device=None, dtype=None).tokenizer
    found = boundaries_of(tokenizer)
    texts = [tokenizer.decode([token]) for token in range(len(tokenizer))]
    marks = {
        token
        for token, text in enumerate(texts)
        if text and not text.rstrip("\n").strip(".?!。？！") and text[0] != "\n"
    }
    assert found.enders == marks
    assert found.enders
    assert found.skipped == {token for token, text in enumerate(texts) if text and not text.strip()}
    for text in ("It is. So", "Is it? Yes", "Stop!\nGo"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        trigger = Sentence(found, 99, 1, 2)
        fired = [token for token in ids if trigger.fires(token)]
        assert len(fired) == 1
        start = tokenizer.decode(fired).strip()
        assert start
        assert text.split()[-1].startswith(start)


def test_a_vocabulary_without_an_end_is_told_what_to_do():
    llm = LLM(small_model("llama"), tokenizer=character_tokenizer("ab, \n"))
    for call in (llm.logits, llm.generate):
        with pytest.raises(PlanError, match=r"no token that ends a sentence.*trigger='periodic'"):
            call([5, 6, 7], plan="slowfast(trigger='sentence')", **({"decode_from": 2} if call == llm.logits else {}))
    [out] = llm.generate([[5, 6, 7]], SamplingParams(max_tokens=2), plan="slowfast(trigger='periodic')")
    assert len(out.token_ids) == 2


def test_a_model_without_a_tokenizer_is_told_what_to_do():
    llm = LLM(small_model("llama"))
    with pytest.raises(PlanError, match=r"no tokenizer.*trigger='periodic'"):
        llm.generate([[5, 6, 7]], plan="slowfast(trigger='sentence')")
    for trigger in ("periodic", "random", "none"):
        assert llm.generate([[5, 6, 7]], SamplingParams(max_tokens=2), plan=f"slowfast(trigger='{trigger}')")
