"""Prompt compression against a plain reading of the method, character by character."""

import importlib.machinery
import math
import sys
import types

import pytest
import torch

from models import small_model
from tiny import save_tiny_model, tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, Plan, SamplingParams
from winnow.engine.services import ModelServices
from winnow.errors import InputError, MissingExtraError, ModelError, PlanError
from winnow.policies.prompt import prompt_compression
from winnow.policies.prompt.prompt_compression import PromptCompression
from winnow.policies.prompt.spelling import spell

TEXT = "  Dr. Lee met  Mr. Ho at 9 a.m. in the U.S. and left.\n\nWho  was it? I know!  It was the old\tman. the end "
SENTENCES = [
    "Dr. Lee met Mr. Ho at 9 a.m. in the U.S. and left.",
    "Who was it?",
    "I know! It was the old man.",
    "the end",
]


@pytest.fixture
def llm():
    return LLM(tiny_model(), tokenizer=byte_tokenizer(), prefill_chunk=16)


def scorer(llm):
    return ModelServices(llm.decoder, llm.tokenizer, llm.prefill_chunk)


@torch.inference_mode()
def information(llm, ids, start=1):
    """-ln P of every token after `start`, by the stock forward."""
    logprobs = llm.model(torch.tensor([[start, *ids]]), use_cache=False).logits[0].float().log_softmax(-1)
    return [-float(logprobs[i, token]) for i, token in enumerate(ids)]


def threshold(scores, keep):
    """The (1 - keep) quantile, linear between the two ranks around it."""
    ordered = sorted(scores)
    rank = (len(ordered) - 1) * (1 - keep)
    below = math.floor(rank)
    return ordered[below] + (rank - below) * (ordered[min(below + 1, len(ordered) - 1)] - ordered[below])


def words(sentence):
    """Units for tests of phrases: words, with "the" and what follows it as one."""
    parts = sentence.split(" ")
    units, at = [], 0
    while at < len(parts):
        size = 2 if parts[at] == "the" else 1
        units.append(" ".join(parts[at : at + size]))
        at += size
    return [unit if i == 0 else " " + unit for i, unit in enumerate(units)]


def naive(llm, keep, unit):
    """Which bytes of TEXT (ASCII, a token each) stay: units as strings, put back one after the other."""
    units = []
    for sentence in SENTENCES:
        values = information(llm, [3 + byte for byte in sentence.encode()])
        split = {"token": list(sentence), "sentence": [sentence], "phrase": words(sentence)}[unit]
        assert "".join(split) == sentence
        for part in split:
            mine, values = values[: len(part)], values[len(part) :]
            units.append((part, sum(mine) / len(mine)))
    limit = threshold([score for _, score in units], keep)
    stays, at = [], 0
    for part, score in units:
        for letter in part.strip() or " ":
            while letter != " " and TEXT[at].isspace():  # the space before a unit is the unit's
                stays.append(score >= limit)
                at += 1
            stays.append(score >= limit)
            at += 1
            while letter == " " and TEXT[at].isspace():
                stays.append(score >= limit)
                at += 1
    stays += [stays[-1]] * (len(TEXT) - len(stays))
    stays[-1] = True
    return [i for i, stay in enumerate(stays) if stay]


def spacy_of(monkeypatch, split):
    """A stand-in for spaCy: a pipeline that cuts sentences with `split`."""

    class Pipeline:
        def add_pipe(self, name):
            assert name == "merge_noun_chunks"

        def __call__(self, sentence):
            parts, at, tokens = split(sentence), 0, []
            for part in parts:
                word = part.lstrip()
                tokens.append(types.SimpleNamespace(text=word, idx=at + len(part) - len(word)))
                at += len(part)
            return tokens

    for name in ("spacy", "en_core_web_sm"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.load = lambda name, disable: Pipeline()
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(prompt_compression, "_english", prompt_compression._english.__wrapped__)


@pytest.mark.parametrize("unit", ["token", "sentence", "phrase"])
@pytest.mark.parametrize("keep", [0.2, 0.35, 0.5, 0.65, 0.8])
def test_equals_the_plain_reading(llm, monkeypatch, unit, keep):
    spacy_of(monkeypatch, words)
    ids = llm.tokenizer(TEXT)["input_ids"]
    got = PromptCompression(keep=keep, unit=unit).shorten(ids, scorer(llm))
    assert got == naive(llm, keep, unit)
    assert 0 < len(got) < len(ids)


def test_sentences_end_where_the_method_says():
    squeezed = " ".join(TEXT.split())
    found = list(prompt_compression._sentences(f" {squeezed} "))
    assert [sentence for _, sentence in found] == SENTENCES
    assert all(f" {squeezed} "[at:].startswith(sentence) for at, sentence in found)


def test_a_token_in_several_units_is_shared_equally():
    """Units end at 2, 5 and 9; a span is given to each that it overlaps, an empty one to that it lies in."""
    ends = [2, 5, 9]
    spans = [(0, 2), (1, 3), (2, 5), (1, 7), (4, 9), (3, 3), (9, 12)]
    touched = [list(prompt_compression._touched(span, ends)) for span in spans]
    assert touched == [[0], [0, 1], [1], [0, 1, 2], [1, 2], [1], [2]]
    assert [prompt_compression._most(span, ends) for span in spans] == [0, 0, 1, 1, 2, 1, 2]


def test_the_score_of_a_unit_is_the_mean_of_its_shares(monkeypatch):
    """Units "ab", " cd", " e"; tokens "a", "b cd" (in two), " e": 1; 6, of which 3 each; 5."""
    monkeypatch.setattr(prompt_compression, "_phrases", lambda sentence: [2, 5, 7])
    monkeypatch.setattr(prompt_compression, "encode", lambda *_: ([7, 8, 9], [(0, 1), (1, 5), (5, 7)]))
    tokenizer = types.SimpleNamespace(bos_token_id=None, eos_token_id=4)
    known = {(4, 7, 8, 9): [1.0, 6.0, 5.0]}
    shape = types.SimpleNamespace(max_positions=100)
    judge = types.SimpleNamespace(tokenizer=tokenizer, shape=shape, surprisal=lambda ids: known[tuple(ids)])
    assert prompt_compression._score_sentence("ab cd e", judge, "phrase") == ([2, 5, 7], [2.0, 3.0, 5.0])


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.65, 0.9])
def test_tokens_without_ties_are_counted(llm, keep):
    """Strictly below the quantile of n values are ceil((n - 1) (1 - keep)); the last token stays besides."""
    text = "It sounds quizzical, but jackdaws from Veborg flew"
    ids = llm.tokenizer(text)["input_ids"]
    kept = PromptCompression(keep=keep).shorten(ids, scorer(llm))
    removed = math.ceil((len(ids) - 1) * (1 - keep) - 1e-9)
    scores = information(llm, ids)
    assert len(set(scores)) == len(scores)
    assert len(ids) - len(kept) == removed - (scores[-1] < threshold(scores, keep))


def test_special_tokens_and_the_last_stay(llm):
    """And text on the two sides of a special token is scored apart."""
    one, two = (llm.tokenizer(part)["input_ids"] for part in ("The cat sat", " on a mat"))
    ids = [1, *one, 2, 1, *two]
    kept = PromptCompression(keep=0.3).shorten(ids, scorer(llm))
    scores = information(llm, one) + information(llm, two[1:])
    limit = threshold(scores, 0.3)
    expected = {i + 1 for i, score in enumerate(scores[: len(one)]) if score >= limit}
    after = len(one) + 3
    expected |= {after + 1 + i for i, score in enumerate(scores[len(one) :]) if score >= limit}
    if after + 1 in expected:
        expected.add(after)  # its leading space
    assert kept == sorted(expected | {0, len(one) + 1, len(one) + 2, len(ids) - 1})


def test_nothing_but_special_tokens_and_spaces_stays_whole(llm):
    ids = [1, 2, *llm.tokenizer(" \n ")["input_ids"], 2]
    assert PromptCompression(keep=0.1).shorten(ids, scorer(llm)) == list(range(len(ids)))


def test_long_sentences_are_scored_in_pieces(llm, monkeypatch):
    """Each of `PIECE` tokens, behind a start token of its own."""
    text = "abc defg hijkl mnop qrstuv wxyz"
    ids = llm.tokenizer(text)["input_ids"]
    monkeypatch.setattr(prompt_compression, "PIECE", 9)
    scores = [value for at in range(0, len(ids), 8) for value in information(llm, ids[at : at + 8])]
    limit = threshold(scores, 0.4)
    expected = [i for i, score in enumerate(scores) if score >= limit or i == len(ids) - 1]
    assert PromptCompression(keep=0.4).shorten(ids, scorer(llm)) == expected


def test_characters_stay_whole(llm):
    """Bytes of one character are one unit, also where the prompt ends inside another."""
    ids = llm.tokenizer("né 🙂 ça é")["input_ids"]
    for prompt in (ids, ids[:-1]):
        kept = set(PromptCompression(keep=0.5).shorten(prompt, scorer(llm)))
        _, spans = spell(llm.tokenizer, prompt)
        for span in set(spans):
            together = {i in kept for i, other in enumerate(spans) if other == span and i < len(prompt) - 1}
            assert len(together) <= 1


def test_a_prompt_that_its_text_does_not_encode_to():
    """Pieces of the bundled model's vocabulary: "w", "orld" where its tokenizer would take one token."""
    tokenizer = LLM("needle").tokenizer
    parts = [tokenizer(part, add_special_tokens=False)["input_ids"] for part in ("Hello w", "orl", "d\n", "\n é!")]
    ids = [token for part in parts for token in part]
    text, spans = spell(tokenizer, ids)
    assert tokenizer(text, add_special_tokens=False)["input_ids"] != ids
    assert text == "Hello world\n\n é!"
    assert spans[0][0] == 0
    assert spans[-1][1] == len(text)
    for token, (start, stop) in zip(ids, spans, strict=True):
        assert tokenizer.decode([token]) in (text[start:stop], "�")


def test_another_model_may_be_surprised(llm, tmp_path):
    """A byte-level scorer for a prompt of larger tokens: each goes with the byte that is most of it."""
    directory = str(save_tiny_model(tmp_path))
    needle = LLM("needle")
    text = "The pass key is 4711. Remember it."
    ids = needle.tokenizer(text)["input_ids"]
    policy = PromptCompression(keep=0.5, unit="sentence", scorer=directory)
    bytes_of = [[3 + byte for byte in part.encode()] for part in ("The pass key is 4711.", "Remember it.")]
    scores = [sum(information(llm, part)) / len(part) for part in bytes_of]
    _, spans = spell(needle.tokenizer, ids)
    first = scores[0] > scores[1]
    expected = [i for i, (_, stop) in enumerate(spans) if (stop <= 21) == first or i == len(ids) - 1]
    assert policy.shorten(ids, scorer(needle)) == expected
    assert Plan.parse(str(Plan(prompt=policy))).prompt == policy
    with pytest.raises(ModelError):
        needle.generate(text, plan=f"prompt_compression(scorer={str(tmp_path / 'none')!r})")


def test_without_a_tokenizer_the_prompt_is_one_sentence(text):
    llm = LLM(small_model("llama"), prefill_chunk=7)
    prompt = text[:31]
    scores = information(llm, prompt[1:], start=prompt[0])
    limit = threshold(scores, 0.6)
    expected = [0, *(i for i, score in enumerate(scores, 1) if score >= limit or i == 30)]
    assert PromptCompression(keep=0.6).shorten(prompt, scorer(llm)) == expected
    assert PromptCompression(keep=0.6).shorten([5], scorer(llm)) == [0]
    got = llm.logits(text, decode_from=31, plan="prompt_compression(keep=0.6)")
    short = [prompt[i] for i in expected]
    torch.testing.assert_close(got, llm.logits(short + text[31:], decode_from=len(short)), rtol=0, atol=0)
    with pytest.raises(InputError, match="no tokenizer"):
        llm.logits(text, decode_from=31, plan="prompt_compression(unit='sentence')")


def test_off_asks_nothing():
    ids = [5, 6, 7]
    assert PromptCompression(keep=1.0).shorten(ids, None) == [0, 1, 2]
    Plan.parse("prompt_compression(keep=1.0)").validate(LLM(small_model()).decoder.shape)


@pytest.mark.parametrize("chunk", [3, 64])
def test_a_batch_counts_the_prompts_as_given(llm, chunk):
    prompts, params = [TEXT, TEXT[:40], "Hi. You?"], SamplingParams(max_tokens=4, ignore_eos=True)
    expected = [llm.generate(prompt, params, plan="prompt_compression(keep=0.5)")[0] for prompt in prompts]
    llm.prefill_chunk = chunk
    for prompt, out, alone in zip(
        prompts, llm.generate(prompts, params, plan="prompt_compression(keep=0.5)"), expected, strict=True
    ):
        ids = llm.tokenizer(prompt)["input_ids"]
        seen = len(PromptCompression(keep=0.5).shorten(ids, scorer(llm)))
        assert out.token_ids == alone.token_ids
        assert out.stats.prompt_tokens == len(ids)
        assert out.stats.rows_computed == 2 * (seen + 3)
        assert out.stats.rows_full == 2 * (len(ids) + 3)


def test_phrases_without_spacy(llm, monkeypatch):
    """Said before any work, with the way out."""
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(MissingExtraError, match="pip install spacy"):
        llm.check(TEXT, plan="prompt_compression(unit='phrase')")


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("prompt_compression(keep=0)", "above 0"),
        ("prompt_compression(keep=2)", "at most 1"),
        ("prompt_compression(unit='word')", "'phrase', 'token', 'sentence'"),
        ("prompt_compression(scorer=3)", "a string or None"),
    ],
)
def test_bad_parameters(plan, says):
    with pytest.raises(PlanError, match=says):
        Plan.parse(plan)
