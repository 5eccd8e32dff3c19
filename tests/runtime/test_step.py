"""Rows that stop between two layers, in a step of several sequences."""

from dataclasses import dataclass

import pytest
import torch

from driving import advance, logits_of
from models import small_model, stock_logits
from winnow import LLM, Plan
from winnow.cache.pattern import All, Span
from winnow.policies.compute.base import ComputePolicy
from winnow.policies.compute.gates import Gate
from winnow.policies.keep.everything import Everything
from winnow.runtime.sequence import new_sequence


@dataclass(frozen=True)
class LastRowsAbove(ComputePolicy):
    """Only the `last` tokens of a segment enter the layers from `layer` on."""

    layer: int
    last: int
    name = "last_rows_above"

    def gates(self, shape):
        return (Gate(self.layer),)

    def choose(self, gate, entrance):
        return torch.arange(entrance.known, device=entrance.visible.device)[-self.last :]


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
def test_rows_that_stop_leave_the_others_right(text, device):
    model = small_model("llama", device)
    decoder = LLM(model).decoder
    shallow = Plan(compute=LastRowsAbove(layer=2, last=3))
    states = [new_sequence(decoder, plan, 40, 40, 40) for plan in (shallow, Plan(), shallow)]
    prompts = [text[:20], text[5:12], text[:31]]
    hidden = advance(decoder, list(zip(states, prompts, strict=True)), decode=False)
    assert [len(rows) for rows in hidden] == [3, 7, 3]
    first, full, second = (logits_of(decoder, rows) for rows in hidden)
    for got, ids in ((first, prompts[0]), (second, prompts[2])):
        with torch.device(device):
            expected = below_then_above(model, ids, layer=2, last=3)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(full, stock_logits(model, prompts[1]), rtol=0, atol=1e-5)
    assert [cache.length for cache in states[0].caches] == [20, 20, 3, 3]
    assert [state.stats.rows_computed for state in states] == [2 * 20 + 2 * 3, 4 * 7, 2 * 31 + 2 * 3]
    assert states[0].stats.rows_full == 4 * 20


@dataclass(frozen=True)
class EveryFourth(ComputePolicy):
    """Every fourth token of the prompt, and the last of a chunk, enter the layers above the first."""

    name = "every_fourth"

    def gates(self, shape):
        return (Gate(1),)

    def choose(self, gate, entrance):
        index = torch.arange(entrance.known)
        return index[(index % 4 == 0) | (index == index[-1])]


@dataclass(frozen=True)
class Compared(All):
    """Without knowing which units a window holds but by comparing positions; nothing leaves."""

    def spans(self, cache, rows, first, positions, window):
        return [Span(cache.start, cache.stop, past=None, window=window)]

    def evict(self, cache, window):
        pass

    def told_by_slots(self, cache, window):
        return False

    def bound(self, chunk, window):
        return None


@dataclass(frozen=True)
class ByPosition(Everything):
    name = "by_position"

    def pattern(self, layer):
        return Compared()


@pytest.mark.parametrize("chunk", [5, 40])
def test_windows_count_positions_where_rows_have_stopped(text, chunk):
    """In sliding-window layers with gaps, places in the cache are not distances in the text."""
    llm = LLM(small_model("mistral"), prefill_chunk=chunk)
    plans = [Plan(compute=EveryFourth(), keep=keep) for keep in (ByPosition(), Everything())]
    expected, got = (llm.logits(text, decode_from=30, plan=plan) for plan in plans)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    assert (got - llm.logits(text)[29:]).abs().max() > 1e-2
