"""LazyLLM as the paper's pseudocode has it: one token, one layer, a dictionary entry each. For Llama, in torch."""

import math

import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb


class LazyReference:
    """kv[l]: position -> (k, v) [kv_heads, head_dim]; aux[l]: position -> input of layer l; counts[l][position]."""

    def __init__(self, model, layers, keep, revive="relaxed", keep_decode=None, prune_generated=False):
        self.model, self.at = model, dict(zip(layers, keep, strict=True))
        self.at_decode = dict(zip(layers, keep_decode or keep, strict=True))
        self.revive, self.prune_generated = revive, prune_generated
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
        for layer in range(self.depth):
            share = (self.at_decode if decode else self.at).get(layer)
            if share is not None:
                kept = self._keep(seen, scores, share, current)
                for position in set(seen) - kept:
                    if position in inputs:
                        self.aux[layer][position] = inputs[position]
                seen = sorted(kept)
            cached = [p for p in seen if p in self.kv[layer]]
            fresh = [p for p in seen if p not in self.kv[layer]]
            for position in fresh:
                if position not in inputs:
                    inputs[position] = self.aux[layer].pop(position)
            inputs, scores = self._layer(layer, cached, fresh, inputs, current)
            self.active.append(seen)
        return self.model.lm_head(self.model.model.norm(inputs[current]))

    def _keep(self, seen, scores, share, current):
        last = current if self.prune_generated else min(current, self.prompt)
        prunable = [p for p in seen if p < last]
        count = max(min(1, len(prunable)), math.ceil(share * len(prunable) - 1e-9))
        ranked = sorted(prunable, key=lambda p: (-scores[p], p))
        return set(seen) - set(ranked[count:])

    def _layer(self, layer, cached, fresh, inputs, current):
        block, config = self.model.model.layers[layer], self.model.config
        head_dim, group = block.self_attn.head_dim, config.num_attention_heads // config.num_key_value_heads
        x = torch.stack([inputs[p] for p in fresh])  # [rows, hidden]
        normed = block.input_layernorm(x)
        q, k, v = (
            project(normed).view(len(fresh), -1, head_dim).transpose(0, 1)
            for project in (block.self_attn.q_proj, block.self_attn.k_proj, block.self_attn.v_proj)
        )
        cos, sin = self.model.model.rotary_emb(x[None], torch.tensor([fresh]))
        q, k = (t[0] for t in apply_rotary_pos_emb(q[None], k[None], cos, sin))
        for row, position in enumerate(fresh):
            self.kv[layer][position] = (k[:, row], v[:, row])
            self.counts[layer][position] = self.counts[layer].get(position, 0) + 1
        keys = [*cached, *fresh]
        k = torch.stack([self.kv[layer][p][0] for p in keys], 1).repeat_interleave(group, 0)
        v = torch.stack([self.kv[layer][p][1] for p in keys], 1).repeat_interleave(group, 0)
        allowed = torch.tensor([[j <= i or (self.revive == "relaxed" and j in cached) for j in keys] for i in fresh])
        weights = (q @ k.mT * block.self_attn.scaling).masked_fill(~allowed, -math.inf).softmax(-1)
        out = (weights @ v).transpose(0, 1).reshape(len(fresh), -1)
        x = x + block.self_attn.o_proj(out)
        x = x + block.mlp(block.post_attention_layernorm(x))
        scores = dict(zip(keys, weights[:, fresh.index(current)].mean(0).tolist(), strict=True))
        return dict(zip(fresh, x, strict=True)), scores
