"""Knorm against an independent token-by-token implementation."""

import torch

from covering import covered
from evict_reference import assert_equals_reference, best
from models import small_model
from winnow import LLM
from winnow.policies.keep.knorm import Knorm

PROMPT = 31


def rule(policy):
    def stays(notes, live):
        score = {p: -(sum(float(x) ** 2 for x in key) ** 0.5) for p, key, _ in notes.units}
        return best(live, score, policy.budget, 0, notes.window)

    return stays


@covered(
    (
        ("name", "parameters"),
        [
            ("llama", {"chunk": 6}),
            ("llama", {"chunk": None, "local": 0}),  # kvpress's form
            ("llama", {"chunk": 5, "positions": "compact", "decode_chunk": 4}),
            ("mistral", {"budget": 6, "chunk": 5}),  # a window of 8 in every layer
        ],
    ),
    prefill_chunk=[1, 7, 64],
)
def test_equals_the_reference(text, name, parameters, prefill_chunk):
    policy = Knorm(**{"budget": 9, "local": 4, **parameters})
    llm = LLM(small_model(name), prefill_chunk=prefill_chunk)
    sets = assert_equals_reference(llm, text, policy, rule(policy), PROMPT, policy.local)
    assert len({str(head) for layer in sets[PROMPT - 1] for head in layer}) > 1  # each head its own


def test_a_small_key_ranks_above_a_large_one():
    keys = torch.tensor([[[3.0, 4.0], [0.0, 1.0]], [[0.0, 0.0], [6.0, 8.0]]])
    scores = Knorm().score.heads(None)(0, keys, keys, keys)
    assert scores.tolist() == [[-5.0, -1.0], [0.0, -10.0]]
