"""KeyDiff against an independent token-by-token implementation."""

import torch

from covering import covered
from evict_reference import assert_equals_reference, best, keys_and_values
from models import small_model
from winnow import LLM
from winnow.policies.keep.keydiff import KeyDiff, unlike_the_mean

PROMPT = 31


def rule(policy, model):
    """Minus the cosine of the angle between a key and the mean of the directions of all that are held."""

    def stays(notes, live):
        keys, _ = keys_and_values(model, policy, notes)
        directions = [key / key.norm() for key in keys]
        mean = sum(directions) / len(directions)
        score = {p: -float(each @ mean) for p, each in zip(live, directions, strict=True)}  # |mean| is that of all
        return best(live, score, policy.budget, 0, notes.window)

    return stays


@covered(
    (
        ("name", "parameters"),
        [
            ("llama", {"chunk": 6}),
            ("llama", {"chunk": None, "local": 0}),  # kvpress's form
            ("llama", {"chunk": 5, "positions": "compact", "decode_chunk": 4}),
            ("llama-9-3", {"chunk": 6, "decode_chunk": 1}),
            ("mistral", {"budget": 6, "chunk": 5}),  # a window of 8 in every layer
        ],
    ),
    prefill_chunk=[1, 7, 64],
)
def test_equals_the_reference(text, name, parameters, prefill_chunk):
    policy = KeyDiff(**{"budget": 9, "local": 4, **parameters})
    llm = LLM(small_model(name), prefill_chunk=prefill_chunk)
    sets = assert_equals_reference(llm, text, policy, rule(policy, llm.model), PROMPT, policy.local)
    assert len({str(head) for layer in sets[PROMPT - 1] for head in layer}) > 1  # each head its own


def test_a_key_that_points_elsewhere_ranks_highest_whatever_its_length():
    keys = torch.tensor([[[1.0, 0.0], [50.0, 0.0], [0.0, 2.0]]])
    scores = unlike_the_mean(keys, keys, None)
    mean = torch.tensor([2.0, 1.0]) / 3
    torch.testing.assert_close(scores, -torch.stack((mean[0], mean[0], mean[1]))[None] / mean.norm())
