"""LoCoCo as its authors' step has it, forward by forward, on the stock modules of a Llama.

At the start of a forward every KV head of every layer that holds more than `budget + slack` units keeps heavy hitters
and makes sums of the others; then come the forward's own units, attention over all of them, and scores.
"""

import torch
from torch import nn
from torch.nn.functional import one_hot, softmax
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb


class Reference:
    """heads: what scores units from the projections of their rows; None: the attention of the last forward."""

    def __init__(self, model, convolutions, *, budget, recent, slack, heads=None):
        self.model, self.budget, self.recent, self.slack, self.heads = model, budget, recent, slack, heads
        self.sums, self.shares = convolutions.config.sums, [layer.share for layer in convolutions.layers]
        self.convolutions = [self.module(layer) for layer in convolutions.layers]
        self.known = 0
        # Per layer and KV head: keys, values [units, head_dim], scores [units].
        kv_heads, width = model.config.num_key_value_heads, model.config.head_dim
        nothing = torch.empty(0, width)
        self.memory = [[[nothing, nothing, torch.empty(0)] for _ in range(kv_heads)] for _ in model.model.layers]

    def module(self, layer):
        """A Conv1d of the same weights."""
        made, inputs, kernel = layer.weight.shape
        conv = nn.Conv1d(inputs, made, kernel, padding=(kernel - 1) // 2)
        conv.load_state_dict({"weight": layer.weight, "bias": layer.bias})
        return conv

    @property
    def held(self):
        """What a layer holds once what is due has been compressed."""
        units = len(self.memory[0][0][0])
        return self.budget if units > self.budget + self.slack else units

    @torch.inference_mode()
    def forward(self, ids):
        """Logits of some tokens, [rows, vocab]."""
        hidden = self.model.model.embed_tokens(torch.tensor(ids))
        places = torch.arange(self.known, self.known + len(ids))[None]
        cos, sin = self.model.model.rotary_emb(hidden[None], places)
        for index, layer in enumerate(self.model.model.layers):
            attention, x = layer.self_attn, layer.input_layernorm(hidden)
            q, k, v = (
                project(x).view(len(ids), -1, attention.head_dim).transpose(0, 1)
                for project in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            own = None if self.heads is None else self.heads(index, q, k, v)
            q, k = (each[0] for each in apply_rotary_pos_emb(q[None], k[None], cos, sin))
            group, outs = len(q) // len(k), []
            for head, memory in enumerate(self.memory[index]):
                if len(memory[0]) > self.budget + self.slack:
                    memory[:] = self.compressed(index, *memory)
                memory[0], memory[1] = torch.cat((memory[0], k[head])), torch.cat((memory[1], v[head]))
                asked = q[head * group : (head + 1) * group]
                out, columns = attended(asked, memory[0], memory[1], attention.scaling)
                memory[2] = columns if own is None else torch.cat((memory[2], own[head]))
                outs.append(out)
            mixed = torch.cat(outs).transpose(0, 1).reshape(len(ids), -1)
            hidden = hidden + attention.o_proj(mixed)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        self.known += len(ids)
        return self.model.lm_head(self.model.model.norm(hidden))

    def compressed(self, layer, keys, values, scores):
        """Keys, values and scores of a head: heavy hitters in their order, then sums."""
        units, heavy = len(keys), self.budget - self.sums
        free = highest(scores[: units - self.recent], heavy - self.recent)
        stay = [*free, *range(units - self.recent, units)]
        rest = [unit for unit in range(units) if unit not in stay]
        seeds = highest(scores[rest], self.sums)
        told = self.convolutions[layer](torch.cat((keys[rest], values[rest]), -1).T[None])[0].relu()
        share = self.shares[layer]
        weights = (1 - share) * one_hot(torch.tensor(seeds), len(rest)) + share * softmax(told, -1)
        lowest = torch.full((self.sums,), torch.finfo(torch.float32).min)
        return [
            torch.cat((keys[stay], weights @ keys[rest])),
            torch.cat((values[stay], weights @ values[rest])),
            torch.cat((scores[stay], lowest)),
        ]


def highest(scores, count):
    """Where the highest scores are, in their order; of equals, as all sums are to retaining heads, the last."""
    ranks = sorted(range(len(scores)), key=lambda unit: (scores[unit].item(), unit))
    return sorted(ranks[len(ranks) - count :])


def attended(q, keys, values, scale):
    """q [group, rows, head_dim] -> [group, rows, head_dim], and what units got of all rows, [units]."""
    logits = scale * q @ keys.T
    rows, units = logits.shape[1:]
    later = torch.arange(units) > torch.arange(units - rows, units)[:, None]
    weights = softmax(logits.masked_fill(later, float("-inf")), -1)
    return weights @ values, weights.mean(0).sum(0)


def run(reference, ids, prompt, chunk):
    """Logits after the prompt and every later token, and what a layer holds then; the prompt in chunks."""
    for start in range(0, prompt, chunk):
        rows = reference.forward(ids[start : min(start + chunk, prompt)])[-1:]
    logits, held = [rows], [reference.held]
    for token in ids[prompt:]:
        logits.append(reference.forward([token]))
        held.append(reference.held)
    return torch.cat(logits), held
