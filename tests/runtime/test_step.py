"""Rows that stop between two layers, in a step of several sequences."""

from dataclasses import dataclass

import torch

from models import small_model
from winnow import LLM, Plan
from winnow.policies.base import ComputePolicy
from winnow.runtime.forward import advance, logits_of
from winnow.runtime.sequence import new_sequence


@dataclass(frozen=True)
class LastRowsAbove(ComputePolicy):
    """Only the last `rows` rows of a segment enter the layers from `layer` on."""

    layer: int
    last: int
    name = "last_rows_above"

    def rows(self, layer, positions):
        return None if layer < self.layer else torch.arange(positions.shape[0])[-self.last :]


def below_then_above(model, ids, layer, last):
    """The same with stock layers: everyone below, the last rows alone above, at their own positions."""
    body, positions = model.model, torch.arange(len(ids))[None]
    hidden = body.embed_tokens(torch.tensor([ids]))
    for index, block in enumerate(body.layers):
        if index == layer:
            hidden, positions = hidden[:, -last:], positions[:, -last:]
        rows = hidden.shape[1]
        mask = torch.full((1, 1, rows, rows), float("-inf")).triu(1)
        tables = body.rotary_emb(hidden, positions)
        hidden = block(hidden, attention_mask=mask, position_embeddings=tables)
    return model.lm_head(body.norm(hidden))[0]


@torch.inference_mode()
def test_rows_that_stop_leave_the_others_right(text):
    model = small_model("llama")
    decoder = LLM(model).decoder
    shallow = Plan(compute=LastRowsAbove(layer=2, last=3))
    states = [new_sequence(decoder, plan, 40, 40, 40) for plan in (shallow, Plan(), shallow)]
    prompts = [text[:20], text[5:12], text[:31]]
    logits = logits_of(decoder, advance(decoder, list(zip(states, prompts, strict=True)), decode=False))
    assert logits.shape[0] == 3 + 7 + 3
    first, full, second = logits.split([3, 7, 3])
    for got, ids in ((first, prompts[0]), (second, prompts[2])):
        torch.testing.assert_close(got, below_then_above(model, ids, layer=2, last=3), rtol=0, atol=1e-5)
    torch.testing.assert_close(full, model(torch.tensor([prompts[1]])).logits[0], rtol=0, atol=1e-5)
    assert [cache.length for cache in states[0].caches] == [20, 20, 3, 3]
    assert [state.stats.rows_computed for state in states] == [2 * 20 + 2 * 3, 4 * 7, 2 * 31 + 2 * 3]
    assert states[0].stats.rows_full == 4 * 20
