"""Policies that score units of every head, or of all heads at once: against restatements token by token."""

import pytest
import torch

from cache_of_scores import cache_of, kept
from covering import covered
from evict_reference import assert_equals_reference
from models import small_model
from score_rules import rule
from winnow import LLM
from winnow.policies.keep.keydiff import KeyDiff, unlike_the_mean
from winnow.policies.keep.knorm import Knorm
from winnow.policies.registry import POLICIES

PROMPT = 31
ONCE = {"chunk": None, "local": 0}  # the form of kvpress, and of TOVA's authors
BELOW_A_WINDOW = {"budget": 6, "chunk": 5}  # of 8, in every layer
CASES = {
    "knorm": [("llama", {"chunk": 5, "positions": "compact", "decode_chunk": 4}), ("mistral", BELOW_A_WINDOW)],
    "keydiff": [
        ("llama", {"chunk": 5, "positions": "compact", "decode_chunk": 4}),
        ("llama-9-3", {"decode_chunk": 1}),
        ("mistral", BELOW_A_WINDOW),
    ],
    "lagkv": [
        ("llama", {**ONCE, "sink": 3, "lag": 2}),
        ("llama", {"chunk": 7, "positions": "compact", "decode_chunk": 4}),
        ("llama-9-3", {"chunk": None, "sink": 0, "lag": 4, "decode_chunk": 1}),
        ("mistral", {**BELOW_A_WINDOW, "lag": 2}),
    ],
    "expected_attention": [
        ("llama", {**ONCE, "sink": 4, "ahead": 512}),
        ("llama", {"chunk": 5, "positions": "compact", "decode_chunk": 4}),
        ("llama-9-3", {"sink": 0, "decode_chunk": 1}),
        ("mistral", BELOW_A_WINDOW),
    ],
    "tova": [
        ("llama", {"chunk": 5, "positions": "compact", "decode_chunk": 4}),
        ("llama-9-3", {"decode_chunk": None}),
        ("mistral", BELOW_A_WINDOW),
    ],
}


@covered(
    (
        ("policy", "name", "parameters"),
        [
            (policy, name, parameters)
            for policy, cases in CASES.items()
            for name, parameters in [("llama", {}), ("llama", ONCE), *cases]
        ],
    ),
    prefill_chunk=[1, 7, 64],
)
def test_equals_the_reference(text, policy, name, parameters, prefill_chunk):
    policy = POLICIES[policy](**POLICIES[policy].trial | parameters)
    llm = LLM(small_model(name), prefill_chunk=prefill_chunk)
    sets = assert_equals_reference(llm, text, policy, rule(policy, llm.model), PROMPT, policy.local)
    after = [[str(head) for head in layer] for layer in sets[PROMPT - 1]]
    assert len({layer[0] for layer in after}) > 1  # each layer its own, and each head, but of tova
    assert all(len(set(layer)) == 1 for layer in after) == (policy.name == "tova")


def test_a_small_key_ranks_above_a_large_one():
    keys = torch.tensor([[[3.0, 4.0], [0.0, 1.0]], [[0.0, 0.0], [6.0, 8.0]]])
    scores = Knorm().score.heads(None)(0, keys, keys, keys)
    assert scores.tolist() == [[-5.0, -1.0], [0.0, -10.0]]


def test_a_key_that_points_elsewhere_ranks_highest_whatever_its_length():
    keys = torch.tensor([[[1.0, 0.0], [50.0, 0.0], [0.0, 2.0]]])
    scores = unlike_the_mean(keys, keys, None)
    mean = torch.tensor([2.0, 1.0]) / 3
    torch.testing.assert_close(scores, -torch.stack((mean[0], mean[0], mean[1]))[None] / mean.norm())


@pytest.mark.parametrize("noise", [[3e-8, -2e-8, 1e-8], [-1e-8, 2e-8, -3e-8]])
def test_cosines_near_0_that_differ_by_rounding_are_equal(noise):
    """A cosine is a sum of terms of either sign: of such units the newer stay."""
    cache = cache_of(torch.tensor([[0.9, *noise, -0.7]]))
    assert kept(KeyDiff(budget=2, local=0), cache) == [[0, 3]]
