"""Full attention equals the stock forward of every supported family, however the rows reach the layers."""

import random

import pytest
import torch
from transformers import LlamaConfig

from covering import covered
from driving import advance, logits_of
from models import CONFIGS, HEADS, small_model, stock_logits
from winnow import LLM, Plan
from winnow.errors import UnsupportedModelError
from winnow.runtime.sequence import new_sequence
from winnow.runtime.shape import shape_of

TOLERANCE = 1e-5


FAMILIES = (*CONFIGS, *HEADS)
each_family = pytest.mark.parametrize("name", FAMILIES)


@pytest.fixture
def model(name, device):
    return small_model(name, device)


def assert_same(got, expected):
    torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE)


@each_family
def test_whole_prompt(model, text):
    assert_same(LLM(model, prefill_chunk=len(text)).logits(text), stock_logits(model, text))


@covered(chunk=[1, 7, 32], name=FAMILIES)
def test_chunked(model, text, chunk):
    assert_same(LLM(model, prefill_chunk=chunk).logits(text), stock_logits(model, text))


@each_family
def test_token_by_token(model, text):
    got = LLM(model, prefill_chunk=5).logits(text, decode_from=11)
    assert_same(got, stock_logits(model, text)[10:])


@each_family
def test_in_a_ragged_batch_with_three_others(model, text):
    """Prefill chunks and decode rows of four sequences of different lengths share every step."""
    source = random.Random(1)
    texts = [text, *([source.randrange(3, 97) for _ in range(n)] for n in (5, 23, 37))]
    decoder = LLM(model).decoder
    states = [new_sequence(decoder, Plan(), len(ids), len(ids), chunk=9) for ids in texts]
    fed = [0] * len(texts)
    rows = [[] for _ in texts]
    while any(done < len(ids) for done, ids in zip(fed, texts, strict=True)):
        takes = [min(source.randrange(0, 10), len(ids) - done) for done, ids in zip(fed, texts, strict=True)]
        live = [i for i, take in enumerate(takes) if take]
        if not live:
            continue
        batch = [(states[i], texts[i][fed[i] : fed[i] + takes[i]]) for i in live]
        hidden = advance(decoder, batch, decode=[takes[i] == 1 for i in live])
        for i, part in zip(live, hidden, strict=True):
            rows[i].append(logits_of(decoder, part))
            fed[i] += takes[i]
    for ids, parts in zip(texts, rows, strict=True):
        assert_same(torch.cat(parts), stock_logits(model, ids))


@each_family
def test_the_model_is_stock_again_afterwards(model, text):
    before = stock_logits(model, text)
    LLM(model).logits(text)
    torch.testing.assert_close(stock_logits(model, text), before, rtol=0, atol=0)
    assert model.config._attn_implementation == "eager"


def test_positions_are_those_that_a_model_was_made_for():
    """Where YaRN's factor tells, a Llama 3 states them; here as many as its 3.2."""
    rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "original_max_position_embeddings": 8192}
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    assert shape_of(LlamaConfig(max_position_embeddings=131072, rope_parameters=rope), 2).max_positions == 131072
    yarn = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768}
    assert shape_of(LlamaConfig(max_position_embeddings=40960, rope_parameters=yarn), 2).max_positions == 131072


def test_length_dependent_frequencies_are_chosen_per_sequence(device, text):
    """A short sequence next to a long one keeps the short factors; stock would give both the long ones."""
    for name, short in (("phi3-longrope-long", 16), ("llama-dynamic", 31)):
        model = small_model(name, device)
        llm = LLM(model)
        states = [new_sequence(llm.decoder, Plan(), len(ids), len(ids), 64) for ids in (text, text[:short])]
        batch = [(states[0], text), (states[1], text[:short])]
        long_rows, short_rows = advance(llm.decoder, batch, decode=False)
        assert_same(logits_of(llm.decoder, long_rows), stock_logits(model, text))
        assert_same(logits_of(llm.decoder, short_rows), stock_logits(model, text[:short]))


@pytest.mark.parametrize(
    ("break_it", "named"),
    [
        (lambda c: setattr(c, "model_type", "falcon"), "falcon"),
        (lambda c: setattr(c, "layer_types", ["full_attention", "chunked_attention"] * 2), "chunked_attention"),
        (lambda c: c.rope_parameters.update(rope_type="spiral"), "spiral"),
    ],
)
def test_anything_unknown_is_refused_by_name(break_it, named):
    model = small_model("llama")
    break_it(model.config)
    with pytest.raises(UnsupportedModelError, match=named):
        LLM(model)
