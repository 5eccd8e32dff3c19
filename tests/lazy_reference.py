"""LazyLLM as the paper's pseudocode has it: one token, one layer, a dictionary entry each. Around stock layers."""

import math

import torch


class Units:
    """Stands for the cache of a stock layer: what the layer computes is put behind what is known.

    known: (k, v) [kv_heads, head_dim] of each unit. fresh: [kv_heads, rows, head_dim], k and v of the rows.
    """

    def __init__(self, known):
        self.known = [torch.stack(parts, 1) for parts in zip(*known, strict=True)]

    def update(self, k, v, *rest, **others):
        self.fresh = k[0], v[0]
        if not self.known:
            return k, v
        return tuple(torch.cat((known[None], new), 2) for known, new in zip(self.known, (k, v), strict=True))


class LazyReference:
    """kv[l]: position -> (k, v) [kv_heads, head_dim]; aux[l]: position -> input of layer l; counts[l][position].

    For families with one rotation for all layers, whose attention is eager and gives its weights.
    """

    def __init__(self, model, layers, keep, revive="relaxed", keep_decode=None, prune_generated=False, max_revive=None,
                 kernel=47, before=7, voters=32, votes="max", rank_layers="all",
                 sink=4):  # fmt: skip
        self.ahead = min(before, kernel // 2)
        self.behind, self.voters, self.votes, self.all = kernel - 1 - self.ahead, voters, votes, rank_layers == "all"
        self.model, self.at = model, dict(zip(layers, keep, strict=True))
        self.at_decode = dict(zip(layers, keep_decode or keep, strict=True))
        self.sink, self.revive, self.prune_generated, self.max_revive = sink, revive, prune_generated, max_revive
        self.depth = model.config.num_hidden_layers
        self.kv = [{} for _ in range(self.depth)]
        self.aux = [{} for _ in range(self.depth)]
        self.counts = [{} for _ in range(self.depth)]
        self.active = []  # of the last step: per layer, the positions it saw
        self.tokens, self.prompt = 0, None

    @torch.inference_mode()
    def step(self, ids):
        """Feed tokens; returns the logits after the last, [vocab]."""
        decode = self.prompt is not None
        new = range(self.tokens, self.tokens + len(ids))
        self.tokens += len(ids)
        self.prompt = self.prompt or self.tokens
        current = self.tokens - 1
        inputs = dict(zip(new, self.model.model.embed_tokens(torch.tensor(ids)), strict=True))
        seen, scores, self.active = list(range(self.tokens)), None, []
        left = self.max_revive if decode and self.max_revive is not None else math.inf
        for layer in range(self.depth):
            share = (self.at_decode if decode else self.at).get(layer)
            if share is not None:
                last = current if self.prune_generated else min(current, self.prompt)
                prunable = [p for p in seen if p < last]
                pooled = self._pooled(prunable, scores)
                kept = self._keep(seen, prunable, pooled, share)
                waiting = sorted((p for p in kept if p in self.aux[layer]), key=lambda p: (-pooled[p], p))
                if left < math.inf:
                    most = left // 2 ** sum(1 for above in self.at if above > layer)
                    kept -= set(waiting[most:])
                    left -= min(most, len(waiting))
                for position in set(seen) - kept:
                    if position in inputs:
                        self.aux[layer][position] = inputs[position]
                seen = sorted(kept)
            cached = [p for p in seen if p in self.kv[layer]]
            fresh = [p for p in seen if p not in self.kv[layer]]
            for position in fresh:
                if position not in inputs:
                    inputs[position] = self.aux[layer].pop(position)
            inputs, found = self._layer(layer, cached, fresh, inputs, current)
            before = scores if self.all and not decode and scores is not None else {}
            scores = {p: max(score, before.get(p, 0.0)) for p, score in found.items()}
            self.active.append(seen)
        logits = self.model.lm_head(self.model.model.norm(inputs[current]))
        cap = getattr(self.model.config, "final_logit_softcapping", None)
        return logits if cap is None else cap * (logits / cap).tanh()

    def _pooled(self, prunable, scores):
        near = {p: prunable[max(0, i - self.behind) : i + self.ahead + 1] for i, p in enumerate(prunable)}
        shared = {p: max(scores[q] for q in among) for p, among in near.items()}
        return {**scores, **shared, **{p: math.inf for p in prunable if p < self.sink}}

    def _keep(self, seen, prunable, scores, share):
        count = max(min(1, len(prunable)), math.ceil(share * len(prunable) - 1e-9))
        ranked = sorted(prunable, key=lambda p: (-scores[p], p))
        return set(seen) - set(ranked[count:])

    def _layer(self, layer, cached, fresh, inputs, current):
        block = self.model.model.layers[layer]
        window = getattr(block.self_attn, "sliding_window", None)
        relaxed = self.revive == "relaxed" and window is None  # a window is causal
        x = torch.stack([inputs[p] for p in fresh])[None]  # [1, rows, hidden]
        units, keys = Units([self.kv[layer][p] for p in cached]), [*cached, *fresh]
        allowed = torch.tensor(
            [[i - j < (window or math.inf) and (j <= i or (relaxed and j in cached)) for j in keys] for i in fresh]
        )
        mask = torch.zeros(allowed.shape).masked_fill(~allowed, -math.inf)[None, None]
        rotation, weights = self.model.model.rotary_emb(x, torch.tensor([fresh])), []
        hook = block.self_attn.register_forward_hook(lambda module, given, out: weights.append(out[1][0]))
        x = block(x, attention_mask=mask, position_embeddings=rotation, cache=units)[0]
        hook.remove()
        for row, position in enumerate(fresh):
            self.kv[layer][position] = tuple(part[:, row] for part in units.fresh)
            self.counts[layer][position] = self.counts[layer].get(position, 0) + 1
        first = current if self.tokens > self.prompt else self.prompt - self.voters
        voting = weights[0][:, [row for row, position in enumerate(fresh) if position >= first]]
        voters = 1 if self.tokens > self.prompt else min(self.voters, self.prompt)  # some may have stopped below
        told = (voting.sum(1) / voters if self.votes == "mean" else voting.amax(1)).mean(0)
        scores = dict(zip(keys, told.tolist(), strict=True))
        return dict(zip(fresh, x, strict=True)), scores
