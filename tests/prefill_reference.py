"""The stock forward in which rows of a prompt read what a rule says: what the prefill policies are compared with.

A rule is a function of a `Look` that returns which units the rows of a piece of the prompt read, [q_heads, rows, units]
bool; what is behind a row's own unit counts for nothing.
"""

from dataclasses import dataclass

import torch
from transformers import AttentionInterface

from driving import decode, prefill
from models import small_model
from winnow import LLM, Plan
from winnow.engine.services import admit

PROMPT = 31


@dataclass(frozen=True)
class Look:
    """A piece of a prompt in one layer. q: [q_heads, rows, head_dim]; k: [q_heads, units, head_dim], each KV head as
    often as query heads share it."""

    layer: int
    q: torch.Tensor
    k: torch.Tensor
    scale: float
    softcap: float | None

    @property
    def rows(self):
        return self.q.shape[1]

    @property
    def units(self):
        return self.k.shape[1]

    @property
    def past(self):
        return self.units - self.rows

    def attention(self, rows):
        """Of the last rows, [q_heads, rows, units] float32."""
        logits = self.q[:, -rows:] @ self.k.mT * self.scale
        logits = logits if self.softcap is None else self.softcap * (logits / self.softcap).tanh()
        seen = torch.ones(rows, self.units, dtype=torch.bool).tril(self.units - rows)
        return logits.masked_fill(~seen, float("-inf")).softmax(-1)


@torch.inference_mode()
def stock_skipping(name, ids, windows, rule, pieces):
    """Logits [tokens, vocab] of a small model, and how many pairs of a query and a key rows of the prompt have read in
    layers without a window. pieces: (start, stop) of those of which is chosen at once."""
    model, read = small_model(name), [0]

    def attention(module, q, k, v, mask, *, scaling, softcap=None, s_aux=None, **others):
        window, heads, tokens = windows[module.layer_idx], q.shape[1], len(ids)
        k, v = (each[0].repeat_interleave(heads // each.shape[1], 0) for each in (k, v))
        causal = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        if window is not None:
            causal = causal.triu(1 - window)
        seen = causal.repeat(heads, 1, 1)
        for start, stop in pieces if window is None else ():
            look = Look(module.layer_idx, q[0, :, start:stop], k[:, :stop], scaling, softcap)
            seen[:, start:stop, :stop] &= rule(look)
            read[0] += int(seen[:, start:stop].sum())
        logits = q[0] @ k.mT * scaling
        logits = logits if softcap is None else softcap * (logits / softcap).tanh()
        logits = logits.masked_fill(~seen, float("-inf"))
        if s_aux is not None:
            logits = torch.cat((logits, s_aux.view(-1, 1, 1).expand(heads, tokens, 1)), -1)
        return (logits.softmax(-1)[..., :tokens] @ v).transpose(0, 1)[None], None

    AttentionInterface.register("skipping", attention)
    model.config._attn_implementation = "skipping"
    return model(torch.tensor([ids]), use_cache=False).logits[0].float(), read[0]


def assert_equals_reference(name, policy, rule, ids, chunk=10):
    """Logits after the prompt and every token that follows, and pairs read; returns the stats. chunk: tokens a step."""
    llm = LLM(small_model(name), prefill_chunk=chunk)
    state, prompt = admit(llm.decoder, None, Plan(prefill=policy), ids[:PROMPT], len(ids) - PROMPT, chunk)
    rows = [prefill(llm.decoder, state, prompt, chunk)]
    rows += [decode(llm.decoder, [(state, token)])[0] for token in ids[PROMPT:]]
    apart = policy.next_end(0) or PROMPT
    pieces = [(start, min(start + apart, PROMPT)) for start in range(0, PROMPT, apart)]
    windows = llm.decoder.shape.windows
    expected, read = stock_skipping(name, ids, windows, rule, pieces)
    torch.testing.assert_close(torch.stack(rows), expected[PROMPT - 1 :], rtol=0, atol=1e-5)
    stats = state.stats
    assert stats.pairs_read == read
    layers = sum(window is None for window in windows)
    assert stats.pairs_full == layers * llm.decoder.shape.q_heads * PROMPT * (PROMPT + 1) // 2
    return stats
