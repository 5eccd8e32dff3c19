"""Locret as the authors' loop has it: lists of units per layer and KV head, over the stock model chunk by chunk."""

import math
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.activations import ACT2FN

from models import small_model
from winnow import LLM, Plan
from winnow.policies.keep.locret import Locret
from winnow.runtime.heads import HeadsConfig, RetainingHeads

NAME = "locret reference"
LENGTH_MATTERS = "dynamic", "longrope"  # rope types whose frequencies depend on the length


def random_heads(llm, width=16, seed=1):
    """Untrained heads for the model of an LLM."""
    return RetainingHeads.random(HeadsConfig.of(llm.model, llm.decoder.shape, width, "repeat"), seed)


def small_llm(name="llama", **options):
    """A small model with random heads."""
    llm = LLM(small_model(name), **{"prefill_chunk": 10, **options})
    llm.decoder.default_heads = random_heads(llm)
    return llm


def locret(**parameters):
    return Plan(keep=Locret(**parameters))


@dataclass
class Unit:
    """key: unrotated, [head_dim]; score: of this KV head, computed once."""

    position: int
    key: Tensor
    value: Tensor
    score: float


class LocretReference:
    """Any family, through the stock forward: its rotation is taken out, and its attention replaced by `_attend`.

    heads: RetainingHeads, for their weights. units[layer][kv_head]: the cache, oldest first. noted: after each step,
    the tokens so far and the positions kept, [layer][kv_head]. A layer whose window is no larger than the budget
    forgets nothing and masks what has left the window.
    """

    def __init__(self, model, heads, budget, chunk, stabilizers, local, positions="compact", decode_chunk=None, sink=0):
        config = model.config
        self.model, self.weights = model, list(zip(heads.first, heads.second, strict=True))
        self.budget, self.chunk, self.stabilizers, self.local = budget, chunk, stabilizers, local
        self.is_compact, self.decode_chunk, self.sink = positions == "compact", decode_chunk, sink
        self.act = ACT2FN[getattr(config, "hidden_act", None) or config.hidden_activation]
        self.units = [[[] for _ in range(config.num_key_value_heads)] for _ in range(config.num_hidden_layers)]
        self.noted = []
        self.windows = {}  # per layer, as it asked attention for it
        self.tokens, self.rotated = 0, False
        self.attention = sys.modules[type(model.model.layers[0].self_attn).__module__]
        self.rotate = self.attention.apply_rotary_pos_emb

    def logits(self, ids, prompt):
        """Prefill ids[:prompt], feed the others one by one: [len(ids) - prompt + 1, vocab]."""
        steps, rows = self._steps(len(ids), prompt), []
        self.tables = self._tables(len(ids), self._most_units(steps) if self.is_compact else len(ids))
        with self._driving(), torch.inference_mode():
            for start, stop, protected in steps:
                out = self.model(torch.tensor([ids[start:stop]]), use_cache=False).logits[0, -1].float()
                self.tokens = stop
                if protected is not None:
                    self._evict(protected)
                kept = [[[unit.position for unit in units] for units in layer] for layer in self.units]
                self.noted.append((stop, kept))
                if stop >= prompt:
                    rows.append(out)
        return torch.stack(rows)

    def acts(self, layer):
        return self.windows[layer] is None or self.windows[layer] > self.budget

    def _steps(self, tokens, prompt):
        """(start, stop, units protected in the eviction after it, or None where there is no eviction)."""
        end, steps = prompt - self.local, []
        for start in range(0, end, self.chunk or end):
            stop = min(start + (self.chunk or end), end)
            steps.append((start, stop, self.stabilizers if stop < end else 0))
        if self.local:
            steps.append((end, prompt, None))
        for token in range(prompt, tokens):
            due = self.decode_chunk is not None and (token + 1 - prompt) % self.decode_chunk == 0
            steps.append((token, token + 1, self.stabilizers if due else None))
        return steps

    def _most_units(self, steps):
        """The most units at once: rope positions go no further."""
        length, most = 0, 0
        for start, stop, protected in steps:
            length += stop - start
            most = max(most, length)
            length = length if protected is None else min(length, self.budget)
        return most

    def _tables(self, tokens, longest):
        """cos and sin [1, tokens, width] per layer; the stock module chooses frequencies by the last position."""
        parameters = self.model.config.rope_parameters
        if "rope_type" not in parameters:
            kinds = self.model.config.layer_types
            return [self.model.model.rotary_emb(torch.empty(0), torch.arange(tokens)[None], kind) for kind in kinds]
        places = longest if parameters["rope_type"] in LENGTH_MATTERS else tokens
        return [self.model.model.rotary_emb(torch.empty(0), torch.arange(places)[None])] * len(self.units)

    @contextmanager
    def _driving(self):
        """The stock model without rotation, but with a note of it, and with this attention."""

        def note(q, k, *_, **__):
            self.rotated = True
            return q, k

        AttentionInterface.register(NAME, self._attend)
        stock = self.model.config._attn_implementation
        self.model.config._attn_implementation = NAME
        with patch.object(self.attention, "apply_rotary_pos_emb", note):
            try:
                yield
            finally:
                self.model.config._attn_implementation = stock

    def _attend(self, module, q, k, v, _, *, scaling, sliding_window=None, softcap=None, s_aux=None, **__):
        """q: [1, q_heads, rows, head_dim] -> [1, rows, q_heads, head_dim]."""
        layer, rows, group = module.layer_idx, q.shape[2], q.shape[1] // k.shape[1]
        rotated, self.rotated = self.rotated, False
        self.windows[layer] = sliding_window
        scores, out = self._scores(layer, q[0], k[0], v[0]), []
        for head, units in enumerate(self.units[layer]):
            for row in range(rows):
                units.append(Unit(self.tokens + row, k[0, head, row], v[0, head, row], float(scores[row, head])))
            at = torch.tensor([unit.position for unit in units])
            places = torch.arange(len(units)) if self.is_compact and self.acts(layer) else at
            keys = torch.stack([unit.key for unit in units])
            values = torch.stack([unit.value for unit in units])
            keys = self._rotate(layer, keys, places) if rotated else keys
            distance = at[-rows:, None] - at  # [rows, units]
            hidden = (distance < 0) | (distance >= (sliding_window or math.inf))
            for query in range(head * group, (head + 1) * group):
                queries = self._rotate(layer, q[0, query], places[-rows:]) if rotated else q[0, query]
                logits = queries @ keys.T * scaling
                if softcap is not None:
                    logits = softcap * torch.tanh(logits / softcap)
                logits = logits.masked_fill(hidden, -math.inf)
                if s_aux is not None:
                    logits = torch.cat((logits, s_aux[query].expand(rows, 1)), 1)
                out.append(logits.softmax(-1)[:, : len(units)] @ values)
        return torch.stack(out, 1)[None], None

    def _rotate(self, layer, x, places):
        cos, sin = (table[:, places] for table in self.tables[layer])
        return self.rotate(x[None, None], x[None, None], cos, sin)[1][0, 0]

    def _scores(self, layer, q, k, v):
        """[rows, kv_heads], from all query heads, then all key heads, then all value heads of a row."""
        first, second = self.weights[layer]
        inputs = torch.stack([torch.cat([heads[:, row].flatten() for heads in (q, k, v)]) for row in range(q.shape[1])])
        return self.act(inputs @ first.T) @ second.T

    def _evict(self, protected):
        """Each head keeps its best `budget` units in order of age, the first `sink` and the newest `protected` before
        all others."""
        for layer, heads in enumerate(self.units):
            for head, units in enumerate(heads if self.acts(layer) else ()):
                heads[head] = self._best(units, protected, self.windows[layer])

    def _best(self, units, protected, window):
        def rank(index):
            in_window = window is None or self.tokens - units[index].position < window
            return in_window, index < self.sink or index >= len(units) - protected, units[index].score

        best = sorted(range(len(units)), key=rank, reverse=True)[: self.budget]
        return [units[index] for index in sorted(best)]
