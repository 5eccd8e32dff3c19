"""Compute and keep policies at once, by their definitions: token by token, lists of units, over the stock layers.

Plans are read for their parameters only.
"""

import math
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.activations import ACT2FN

NAME = "composition reference"


@dataclass
class Unit:
    """key: unrotated, [head_dim]; score: of this KV head."""

    position: int
    key: Tensor
    value: Tensor
    score: float = 0.0


class CompositionReference:
    """A sequence of `prompt` prompt tokens under a plan of a compute and a keep policy, `tokens` in all.

    windows: per layer. deep: the prompt tokens that SPEED lets through, positions. heads: retaining heads, for their
    weights. units[layer][kv_head]: what is held, in the order in which it came. rows, read: rows computed, and units
    read by decode steps. only: where a read policy says it, the positions that the next step reads, [layer][kv_head].
    """

    def __init__(self, model, windows, plan, prompt, tokens, deep=(), heads=None):
        config = model.config
        self.model, self.windows, self.compute, self.keep = model, windows, plan.compute, plan.keep
        self.prompt, self.deep, self.heads, self.layers = prompt, set(deep), heads, config.num_hidden_layers
        speed = plan.compute.name == "speed"
        self.entrances = (plan.compute.cutoff,) if speed else plan.compute.layers
        self.upper = self.entrances[0]
        self.choose = self._deep_only if speed else self._lazily
        self.act = ACT2FN[getattr(config, "hidden_act", None) or config.hidden_activation]
        self.units = [[[] for _ in range(config.num_key_value_heads)] for _ in range(self.layers)]
        self.aside = {layer: {} for layer in self.entrances}
        self.known = self.rows = self.read = 0
        self.only = None
        self.rotated, self.tables = False, self._tables(tokens)
        self.attention = sys.modules[type(model.model.layers[0].self_attn).__module__]
        self.rotate = self.attention.apply_rotary_pos_emb

    def logits(self, ids):
        """After the prompt and after every token that follows it: [len(ids) - prompt + 1, vocab]."""
        return torch.stack([row for row in map(self.step, ids) if self.known >= self.prompt])

    @torch.inference_mode()
    def step(self, token):
        """Feed a token; its logits [vocab], None where it has stopped below the last layer."""
        current, self.known = self.known, self.known + 1
        scale = getattr(self.model.config, "embedding_multiplier", 1.0)
        rows, self.seen = {current: self.model.model.embed_tokens(torch.tensor([token]))[0] * scale}, None
        with self._driving():
            for layer in range(self.layers):
                if layer in self.entrances:
                    rows = self.choose(layer, rows)
                if rows:
                    rows = self._through(layer, rows)
        self._compress()
        return self._head(rows[current]) if current in rows else None

    def _head(self, hidden):
        config = self.model.config
        logits = self.model.lm_head(self.model.model.norm(hidden[None]))[0] / getattr(config, "logits_scaling", 1.0)
        if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
            logits = (logits / cap).tanh() * cap
        return logits * getattr(config, "logit_scale", 1.0)

    # Compute

    def _deep_only(self, layer, rows):
        return {p: hidden for p, hidden in rows.items() if p in self.deep or p >= self.prompt}

    def _lazily(self, layer, rows):
        """Rank what this step sees by the attention of its last row below; the others leave their input behind."""
        aside, decode = self.aside[layer], self.known > self.prompt
        if self.known < self.prompt:
            aside.update(rows)
            return {}
        if decode and self.compute.revive == "never":
            return rows
        shares = self.compute.keep_decode if decode and self.compute.keep_decode else self.compute.keep
        visible = range(self.known) if self.seen is None else sorted(self.seen)
        prunable = [p for p in visible if p < min(self.known - 1, self.prompt)]
        count = max(min(1, len(prunable)), math.ceil(shares[self.entrances.index(layer)] * len(prunable) - 1e-9))
        ranked = sorted(prunable, key=lambda p: (-self.ranks.get(p, 0.0), p))
        self.seen = set(visible) - set(ranked[count:])
        there = {**aside, **rows}
        self.aside[layer] = {p: h for p, h in there.items() if p not in self.seen and self.compute.revive != "never"}
        return {p: there[p] for p in sorted(there) if p in self.seen}

    # A layer

    def _through(self, layer, rows):
        self.fresh = list(rows)
        cos, sin = (table[:, self.fresh] for table in self.tables[layer])
        out = self.model.model.layers[layer](
            torch.stack(list(rows.values()))[None], attention_mask=None, position_embeddings=(cos, sin)
        )
        planted = layer >= self.upper and self.compute.name == "speed" and self.fresh == [0]
        self.rows += len(self.fresh) - planted
        return dict(zip(self.fresh, out[0], strict=True))

    def _attend(self, module, q, k, v, _, *, scaling, sliding_window=None, softcap=None, s_aux=None, **__):
        """q: [1, q_heads, rows, head_dim] -> [1, rows, q_heads, head_dim]."""
        layer, group, rotated = module.layer_idx, q.shape[1] // k.shape[1], self.rotated
        self.rotated, window = False, self.windows[layer]
        assert sliding_window in (None, window)
        scores, out, means = self._scores(layer, q[0], k[0], v[0]), [], []
        for head, units in enumerate(self.units[layer]):
            units += [Unit(p, k[0, head, i], v[0, head, i], float(scores[i, head])) for i, p in enumerate(self.fresh)]
            only = {unit.position for unit in units} if self.only is None else self.only[layer][head]
            hidden = [[u.position not in only or not self._sees(layer, row, u) for u in units] for row in self.fresh]
            hidden = torch.tensor(hidden)
            values, weights = torch.stack([unit.value for unit in units]), []
            for query in range(head * group, (head + 1) * group):
                logits = self._logits(layer, q[0, query], units, rotated) * scaling
                logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
                logits = logits.masked_fill(hidden, -math.inf)
                if s_aux is not None:
                    logits = torch.cat((logits, s_aux[query].expand(len(logits), 1)), 1)
                weights.append(logits.softmax(-1)[:, : len(units)])
                out.append(weights[-1] @ values)
            means.append(torch.stack(weights).mean(0)[-1].tolist())  # of the last row
        self._note(layer, means)
        return torch.stack(out, 1)[None], None

    def _sees(self, layer, row, unit):
        p, window = unit.position, self.windows[layer]
        if self.seen is not None and p not in self.seen:
            return False
        if self._alone(layer) and p != row:
            return p in self._anchors() and (window is None or row - p < window)
        if self.compute.name == "lazyllm" and self.compute.revive == "relaxed" and window is None:
            return p <= row or p not in self.fresh
        if self._streams(layer):
            return p <= row and (p < self.keep.sink or row - p < self.keep.recent)
        return p <= row and (window is None or row - p < window)

    def _logits(self, layer, queries, units, rotated):
        """[rows, units], without the scale. queries: [rows, head_dim]."""
        keys = torch.stack([unit.key for unit in units])
        if not rotated:
            return queries @ keys.T
        at, rows = torch.tensor([unit.position for unit in units]), torch.tensor(self.fresh)
        if layer < self.upper and self._acts(layer) and self.keep.positions == "compact":
            at, rows = torch.arange(len(units)), torch.arange(len(units) - len(rows), len(units))
        keys = self._rotate(layer, keys, at)
        logits = self._rotate(layer, queries, rows) @ keys.T
        if self._streams(layer):
            near = self._rotate(layer, queries, rows.clamp(max=self.keep.sink + self.keep.recent - 1)) @ keys.T
            logits = torch.where(at < self.keep.sink, near, logits)
        return logits

    def _note(self, layer, means):
        """Of the last row, per KV head the mean weight of each unit: for ranking, votes, counts; then what goes."""
        row, heads = self.fresh[-1], self.units[layer]
        self.ranks = {}
        for units, mean in zip(heads, means, strict=True):
            for unit, weight in zip(units, mean, strict=True):
                self.ranks[unit.position] = self.ranks.get(unit.position, 0.0) + weight / len(heads)
            if self._votes(layer, row):
                self._vote(layer, row, units, mean)
        if row >= self.prompt:
            self.read += len(heads) * max(self._shown(layer, units) for units in heads)
        for head, units in enumerate(heads):
            heads[head] = [unit for unit in units if self._stays(layer, row, unit)]

    def _shown(self, layer, units):
        """How many units a decode step reads of those that a head holds."""
        window, sees = self.windows[layer] or math.inf, self.seen
        if self._streams(layer):
            return sum(self._sees(layer, self.fresh[-1], unit) for unit in units)
        if sees is None:
            return len(units) if self._acts(layer) or self._alone(layer) else min(len(units), window)
        return sum(unit.position in sees and unit.position > self.fresh[0] - window for unit in units)

    def _stays(self, layer, row, unit):
        """Whether a row's attention leaves a unit there."""
        p, window = unit.position, self.windows[layer]
        if self._alone(layer):
            return p in self._anchors()
        if self._streams(layer):
            return p < self.keep.sink or p > row - self.keep.recent
        revives = self.compute.name == "lazyllm" and self.compute.revive != "never"
        return window is None or self._acts(layer) or revives or p > row + 1 - window

    # Keep

    def _alone(self, layer):
        """Whether a row sees the anchors and itself, and leaves no unit."""
        return self.compute.name == "speed" and self.compute.self_only and layer >= self.upper

    def _anchors(self):
        """The prompt tokens let through that are not part of the decode phase."""
        start = self.prompt - 1
        while start - 1 in self.deep:
            start -= 1
        return {p for p in self.deep if p < start}

    def _streams(self, layer):
        """Whether sinks and recent units are seen: not where the layer's own window is smaller."""
        window = self.windows[layer] or math.inf
        governs = window < self.keep.sink + self.keep.recent if self.keep.name == "streaming" else True
        return not governs and not self._alone(layer)

    def _acts(self, layer):
        return hasattr(self.keep, "budget") and (self.windows[layer] or math.inf) > self.keep.budget

    def _boundary(self, known):
        """After how many tokens, more than `known`, units are evicted next."""
        end, keep = self.prompt - self.keep.local, self.keep
        times = [end, *([] if keep.chunk is None else range(keep.chunk, end, keep.chunk))]
        if keep.decode_chunk is not None:
            times.append(self.prompt + (max(0, known - self.prompt) // keep.decode_chunk + 1) * keep.decode_chunk)
        return min((time for time in times if time > known), default=None)

    def _scores(self, layer, q, k, v):
        """[rows, kv_heads], by the retaining heads; else 0."""
        if self.keep.name != "locret":
            return torch.zeros(q.shape[1], len(k))
        first, second = self.heads.first[layer], self.heads.second[layer]
        inputs = torch.stack([torch.cat([heads[:, row].flatten() for heads in (q, k, v)]) for row in range(q.shape[1])])
        return self.act(inputs @ first.T) @ second.T

    def _votes(self, layer, row):
        planted = row == 0 and layer >= self.upper and 0 in self._anchors()
        if self.keep.name not in ("h2o", "snapkv", "scissorhands") or not self._acts(layer) or planted:
            return False
        end = self._boundary(row)
        return end is not None and (self.keep.name == "h2o" or row >= end - self.keep.window)

    def _vote(self, layer, row, units, mean):
        seen = [self._sees(layer, row, unit) for unit in units]
        for unit, weight, sees in zip(units, mean, seen, strict=True):
            passed_over = sees and weight * sum(seen) < 1
            unit.score += -passed_over if self.keep.name == "scissorhands" else weight

    def _compress(self):
        regular = hasattr(self.keep, "budget") and self._boundary(self.known - 1) == self.known
        for layer, heads in enumerate(self.units):
            late = self.known == self.prompt and self.compute.name == "lazyllm" and layer >= self.upper
            for head, units in enumerate(heads if self._acts(layer) and (regular or late) else ()):
                heads[head] = self._best(units, self.windows[layer], late)
                if self.keep.name in ("snapkv", "scissorhands"):
                    for unit in heads[head]:
                        unit.score = 0.0

    def _best(self, units, window, late):
        """The first and the newest ones that are protected and the best others, the window's first, of equals the
        newest."""
        keep, ends = self.keep, late or self.known == self.prompt - self.keep.local
        protected = {"locret": "stabilizers", "snapkv": "window"}.get(keep.name, "recent")
        protected = 0 if keep.name == "locret" and ends else getattr(keep, protected)
        beside = sum(unit.position >= self.prompt - keep.local for unit in units) if late else 0
        if len(units) <= keep.budget + beside:
            return units
        scores = [unit.score for unit in units]
        if keep.name == "snapkv":
            scores = self._pooled(scores[: len(units) - keep.window])

        def rank(i):
            inside = window is None or self.known - units[i].position < window
            stays = i >= len(units) - protected - beside or (keep.name == "locret" and i < keep.sink)
            return inside, stays, 0 if stays or not inside else scores[i], i

        best = sorted(range(len(units)), key=rank, reverse=True)[: keep.budget + beside]
        return [units[i] for i in sorted(best)]

    def _pooled(self, votes):
        reach = self.keep.kernel // 2
        near = [[votes[j] if 0 <= j < len(votes) else None for j in range(i - reach, i + reach + 1)]
                for i in range(len(votes))]  # fmt: skip
        if self.keep.pooling == "max":
            return [max(vote for vote in each if vote is not None) for each in near]
        return [sum(vote or 0.0 for vote in each) / self.keep.kernel for each in near]

    # Rotation

    def _tables(self, tokens):
        """cos and sin [1, tokens, width] per layer, of the places in the text."""
        rotary, at, config = self.model.model.rotary_emb, torch.arange(tokens)[None], self.model.config
        if "rope_type" in config.rope_parameters:
            return [rotary(torch.empty(0), at)] * self.layers
        return [rotary(torch.empty(0), at, kind) for kind in config.layer_types]

    def _rotate(self, layer, x, places):
        cos, sin = (table[:, places] for table in self.tables[layer])
        return self.rotate(x[None, None], x[None, None], cos, sin)[1][0, 0]

    @contextmanager
    def _driving(self):
        """The stock layers without rotation, but with a note of it, and with this attention."""

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
