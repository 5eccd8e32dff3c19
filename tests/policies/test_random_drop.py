"""Random token drop: a counted, seeded, uniform subset, and a shorter prompt for everything after it."""

import collections
import math

import pytest
import torch

from models import small_model
from winnow import LLM, SamplingParams
from winnow.errors import PlanError
from winnow.policies.prompt.random_drop import RandomDrop

PROMPT = 31


@pytest.fixture
def llm():
    return LLM(small_model("llama"), prefill_chunk=7)


def kept(tokens, **parameters):
    return RandomDrop(**parameters).shorten([5] * tokens, None)


@pytest.mark.parametrize("tokens", [1, 2, 3, 10, 31, 1000])
@pytest.mark.parametrize("keep", [0.01, 0.3, 0.5, 0.7, 0.999, 1.0])
def test_the_share_is_counted_with_both_ends(tokens, keep):
    index = kept(tokens, keep=keep, seed=3)
    assert len(index) == min(tokens, max(2, math.ceil(keep * tokens - 1e-9)))
    assert index == sorted(set(index))
    assert (index[0], index[-1]) == (0, tokens - 1)


def test_the_seed_and_the_length_decide_and_nothing_else():
    first = kept(40, keep=0.5, seed=4)
    torch.manual_seed(99)
    assert kept(40, keep=0.5, seed=4) == first
    assert kept(40, keep=0.5, seed=5) != first
    assert RandomDrop(seed=4).shorten(list(range(40)), None) == first


def test_every_token_between_the_ends_is_as_likely():
    """2000 subsets: each of the 18 inner tokens is in 8 of 18; five standard deviations are 0.056."""
    counts = collections.Counter(i for seed in range(2000) for i in kept(20, keep=0.5, seed=seed))
    assert all(abs(counts[i] / 2000 - 8 / 18) < 0.056 for i in range(1, 19))


def test_the_model_sees_a_shorter_prompt(llm, text):
    """Positions are renumbered: the same logits as full attention over the kept tokens."""
    index = kept(PROMPT, keep=0.5, seed=2)
    short = [text[i] for i in index]
    got = llm.logits(text, decode_from=PROMPT, plan="random_drop(keep=0.5, seed=2)")
    expected = llm.logits(short + text[PROMPT:], decode_from=len(short))
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_a_ragged_batch_equals_each_alone_and_counts_the_prompt_as_given(llm, text):
    prompts, params = [text, text[:9], text[:20]], SamplingParams(max_tokens=5, ignore_eos=True)
    together = llm.generate(prompts, params, plan="random_drop(keep=0.4)")
    for prompt, out in zip(prompts, together, strict=True):
        [alone] = llm.generate([prompt], params, plan="random_drop(keep=0.4)")
        assert out.token_ids == alone.token_ids
        seen, layers, stats = math.ceil(0.4 * len(prompt) - 1e-9), 4, out.stats
        assert stats.prompt_tokens == len(prompt)
        assert stats.rows_computed == layers * (seen + 4)
        assert stats.rows_full == layers * (len(prompt) + 4)
        assert stats.units_read == 2 * layers * sum(seen + step for step in range(1, 5))
        assert stats.units_full == 2 * layers * sum(len(prompt) + step for step in range(1, 5))
        assert stats.cache_bytes == (seen + 4) * layers * 2 * llm.decoder.shape.unit_bytes


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("random_drop(keep=0)", "above 0"),
        ("random_drop(keep=1.1)", "at most 1"),
        ("random_drop(seed=-1)", "at least 0"),
        ("random_drop(seed=0.5)", "whole number"),
        ("random_drop + prompt_compression", "both say what to show of a prompt"),
    ],
)
def test_bad_parameters(llm, text, plan, says):
    with pytest.raises(PlanError, match=says):
        llm.logits(text, decode_from=PROMPT, plan=plan)
