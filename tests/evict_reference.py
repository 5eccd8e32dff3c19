"""Caches of fixed size, one token at a time, on stock modules: what the eviction policies are compared with.

Every KV head of every layer is a Python list of units; the attention of every row is written down, and what stays is
decided from those notes alone. A rule is a function `rule(notes, live) -> positions that stay`.
"""

from dataclasses import dataclass, field

import torch
from torch.nn.functional import softmax
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from driving import decode, prefill
from winnow import Plan
from winnow.cache.view import NOBODY
from winnow.engine.services import admit


@dataclass
class Notes:
    """What a rule may look at, for one KV head of one layer.

    attention: per row {position: weight}, the mean over the group; ids, logits: of all tokens so far; boundaries: after
    how many tokens there could be an eviction before, and 0; evictions: those at which there was; window: the layer's;
    queries: of all rows; units: what the head holds, (position, key, value); heads: the notes of the layer's heads.
    """

    attention: list = field(default_factory=list)
    ids: list = field(default_factory=list)
    logits: list = field(default_factory=list)
    boundaries: list = field(default_factory=lambda: [0])
    evictions: list = field(default_factory=list)
    window: int | None = None
    queries: list = field(default_factory=list)
    units: list = field(default_factory=list)
    heads: list = field(default_factory=list)


def boundaries(prompt, tokens, chunk, local, decode_chunk):
    """After how many tokens units are evicted."""
    end = prompt - local
    times = [end] if chunk is None else [*range(chunk, end, chunk), end]
    return set(times) | (set() if decode_chunk is None else set(range(prompt + decode_chunk, tokens + 1, decode_chunk)))


@torch.inference_mode()
def run_reference(model, ids, rule, *, prompt, budget, chunk, local, positions, decode_chunk, acts=True, shared=None):
    """Logits after every token, [tokens, vocab], and what every head of every layer holds after it, positions.

    shared: instead of the rule, for heads that share the budgets of a layer: (layer, notes of its heads, what they
    hold) -> positions that stay of each, or None for all.
    """
    times = boundaries(prompt, len(ids), chunk, local, decode_chunk)
    layers, window = model.model.layers, getattr(model.config, "sliding_window", None)
    kv_heads = model.config.num_key_value_heads
    held = [[[] for _ in range(kv_heads)] for _ in layers]  # (position, key, value)
    common = Notes()
    notes = [
        [Notes([], common.ids, common.logits, common.boundaries, common.evictions, window) for _ in range(kv_heads)]
        for _ in layers
    ]
    logits, sets = [], []
    for position, token in enumerate(ids):
        hidden = model.model.embed_tokens(torch.tensor([token]))
        for layer, units, seen in zip(layers, held, notes, strict=True):
            hidden = through(model, layer, hidden, position, units, seen, compact=positions == "compact" and acts)
        logits.append(model.lm_head(model.model.norm(hidden))[0])
        common.ids.append(token)
        common.logits.append(logits[-1])
        if position + 1 in times and acts:
            for layer, seen in zip(held, notes, strict=True):
                for units, note in zip(layer, seen, strict=True):
                    note.units, note.heads = units, seen
            if shared is not None:
                for layer, (heads, seen) in enumerate(zip(held, notes, strict=True)):
                    stay = shared(layer, seen, [[unit[0] for unit in head] for head in heads])
                    if stay is not None:
                        held[layer] = [[u for u in h if u[0] in s] for h, s in zip(heads, stay, strict=True)]
            elif len(held[0][0]) > budget:
                keep = [[set(rule(n, [u[0] for u in h])) for h, n in zip(*both, strict=True)]
                        for both in zip(held, notes, strict=True)]  # fmt: skip
                assert all(len(stays) == budget for layer in keep for stays in layer)
                held = [[[u for u in h if u[0] in stays] for h, stays in zip(*both, strict=True)]
                        for both in zip(held, keep, strict=True)]  # fmt: skip
                common.evictions.append(position + 1)
            common.boundaries.append(position + 1)
        sets.append([[[unit[0] for unit in head] for head in layer] for layer in held])
    return torch.stack(logits), sets


def through(model, layer, hidden, position, units, notes, compact):
    """One row through one layer; the units of its heads grow by one."""
    attention, x = layer.self_attn, layer.input_layernorm(hidden)
    q, k, v = (
        project(x).view(-1, attention.head_dim) for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    outs = []
    for head, (unit, note) in enumerate(zip(units, notes, strict=True)):
        unit.append((position, k[head], v[head]))
        places = torch.tensor([range(len(unit)) if compact else [p for p, _, _ in unit]])
        keys = torch.stack([key for _, key, _ in unit])[None, None]
        queries = q.view(len(units), -1, q.shape[-1])[head][None, :, None]  # [1, group, 1, head_dim]
        note.queries.append(queries[0, :, 0])
        cos, sin = model.model.rotary_emb(x[None], places)
        keys, _ = apply_rotary_pos_emb(keys, keys, cos, sin)
        queries, _ = apply_rotary_pos_emb(queries, queries, cos[:, -1:], sin[:, -1:])
        weights = queries @ keys.mT * attention.scaling
        gone = torch.tensor([note.window is not None and position - p >= note.window for p, _, _ in unit])
        weights = softmax(weights.masked_fill(gone, float("-inf")), -1)[0, :, 0]  # [group, units]
        mean = weights.mean(0).tolist()
        note.attention.append({p: w for (p, _, _), w, g in zip(unit, mean, gone.tolist(), strict=True) if not g})
        outs.append(weights @ torch.stack([value for _, _, value in unit]))
    hidden = hidden + attention.o_proj(torch.cat(outs).reshape(1, -1))
    return hidden + layer.mlp(layer.post_attention_layernorm(hidden))


def turned(model, x, places):
    """x [rows, head_dim], each row rotated at one of `places`."""
    cos, sin = model.model.rotary_emb(x[None], torch.tensor([list(places)]))
    return apply_rotary_pos_emb(x[None, None], x[None, None], cos, sin)[0][0, 0]


def keys_and_values(model, policy, notes):
    """Of the units that a head holds, [units, head_dim], keys as rows attend to them."""
    places, keys, values = zip(*notes.units, strict=True)
    places = range(len(keys)) if policy.positions == "compact" else places
    return turned(model, torch.stack(keys), places), torch.stack(values)


def best(live, score, count, protected, window):
    """The newest `protected` and the best others: `count` positions; of equals the newer; the window's first."""
    following = live[-1] + 1
    inside = {p: window is None or following - p < window for p in live}
    order = sorted(live, key=lambda p: (p in live[len(live) - protected :], inside[p], score[p], p), reverse=True)
    return order[:count]


def run_winnow(llm, ids, policy, prompt):
    """Logits after the prompt and after every token fed after it, and the positions held at those times."""
    state, seen = admit(llm.decoder, None, Plan(keep=policy), ids[:prompt], len(ids) - prompt, llm.prefill_chunk)
    rows, sets = [prefill(llm.decoder, state, seen, llm.prefill_chunk)], [held(state)]
    for token in ids[prompt:]:
        rows.append(decode(llm.decoder, [(state, token)])[0])
        sets.append(held(state))
    return torch.stack(rows), sets


def held(state):
    """Per layer and KV head, the positions of the live units."""
    kv_heads = state.shape.kv_heads
    every = (cache.live_positions().expand(kv_heads, -1).tolist() for cache in state.caches)
    return [[[position for position in head if position != NOBODY] for head in layer] for layer in every]


def assert_equals_reference(llm, ids, policy, rule, prompt, local, acts=True, shared=None):
    """The logits and the kept sets after the prompt and after every new token."""
    expected, sets = run_reference(
        llm.model, ids, rule, prompt=prompt, budget=policy.budget, chunk=policy.chunk, local=local,
        positions=policy.positions, decode_chunk=policy.decode_chunk, acts=acts, shared=shared,
    )  # fmt: skip
    got, got_sets = run_winnow(llm, ids, policy, prompt)
    assert got_sets == sets[prompt - 1 :]
    torch.testing.assert_close(got, expected[prompt - 1 :], rtol=0, atol=1e-5)
    return sets
