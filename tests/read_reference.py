"""The stock forward in which every row after a prompt reads what a rule says: what the read policies are compared with.

A rule is a function of a `Look` that returns the units that a row reads in a layer, [kv_heads, units] bool, and how
many units per KV head it has read besides to find out.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from transformers import AttentionInterface

from driving import decode, prefill
from models import small_model
from winnow import LLM, Plan
from winnow.engine.services import admit

PROMPT = 31
OVER_OTHERS = {
    "others": [
        "streaming(sink=3, recent=14)",  # loses its oldest unit at every step
        "streaming(sink=16, recent=14)",  # has more in front
        "locret(budget=12, chunk=6, local=4)",  # every head has its own units
        "locret(budget=12, chunk=6, local=4, decode_chunk=3)",  # they change, and keys are held unrotated
        "snapkv(budget=12, chunk=6, window=2, local=4, decode_chunk=None)",
        "static_prune(keep=0.5, layers=2)",
        "speed(cutoff=2, decode_from='last:12')",
        "speed(cutoff=2, decode_from='last:12', self_only=True)",
    ],
    "name": ["llama", "mistral"],
}  # plans whose caches change under a reader


@dataclass(frozen=True)
class Look:
    """One row in one layer. first: the position of the first unit in its window; q: [kv_heads, group, head_dim]; k:
    [kv_heads, units, head_dim], all of the window; logits: [kv_heads, group, units], as the softmax sees them."""

    layer: int
    row: int
    window: int | None
    first: int
    q: torch.Tensor
    k: torch.Tensor
    logits: torch.Tensor

    @property
    def units(self) -> int:
        return self.k.shape[1]

    def everything(self) -> torch.Tensor:
        return torch.ones(self.k.shape[:2], dtype=torch.bool)


@torch.inference_mode()
def stock_reading(name, ids, windows, rule):
    """Logits [tokens, vocab] of a small model, and the units that each row after the prompt has read."""
    model, read = small_model(name), [0] * len(ids)

    def attention(module, q, k, v, mask, *, scaling, softcap=None, s_aux=None, **others):
        layer, out = module.layer_idx, torch.empty_like(q[0]).transpose(0, 1)  # [rows, q_heads, head_dim]
        for row in range(len(ids)):
            first = 0 if windows[layer] is None else max(0, row - windows[layer] + 1)
            keys, values = k[0, :, first : row + 1], v[0, :, first : row + 1]
            queries = q[0, :, row].unflatten(0, (len(keys), -1))
            logits = queries @ keys.mT * scaling
            logits = logits if softcap is None else softcap * (logits / softcap).tanh()
            if row >= PROMPT:
                seen, besides = rule(Look(layer, row, windows[layer], first, queries, keys, logits))
                logits = logits.masked_fill(~seen[:, None], float("-inf"))
                read[row] += int(seen.sum()) + besides * len(keys)
            if s_aux is not None:
                logits = torch.cat((logits, s_aux.view(len(keys), -1, 1)), -1)
            out[row] = (logits.softmax(-1)[..., : row + 1 - first] @ values).flatten(0, 1)
        return out[None], None

    AttentionInterface.register("by_rule", attention)
    model.config._attn_implementation = "by_rule"
    return model(torch.tensor([ids]), use_cache=False).logits[0].float(), read[PROMPT:]


def small_llm(name="llama"):
    return LLM(small_model(name), prefill_chunk=10)


def run(llm, plan, ids, observer=None, reader=None):
    """Logits after the prompt and every token fed after it; units read by each of these; the sequence. reader: instead
    of the plan's."""
    state, prompt = admit(llm.decoder, None, plan, ids[:PROMPT], len(ids) - PROMPT, llm.prefill_chunk)
    state.reader = reader or state.reader
    rows, counts = [prefill(llm.decoder, state, prompt, llm.prefill_chunk)], [0]
    state.observer = observer
    for token in ids[PROMPT:]:
        rows.append(decode(llm.decoder, [(state, token)])[0])
        counts.append(state.stats.units_read)
    return torch.stack(rows), [after - before for before, after in pairwise(counts)], state


def assert_equals_reference(name, policy, rule, ids):
    """Logits and units read, after every step; returns the units read by each."""
    llm = small_llm(name)
    got, counts, _ = run(llm, Plan(read=policy), ids)
    expected, read = stock_reading(name, ids, llm.decoder.shape.windows, rule)
    assert counts == read
    torch.testing.assert_close(got, expected[PROMPT - 1 :], rtol=0, atol=1e-5)
    return counts
