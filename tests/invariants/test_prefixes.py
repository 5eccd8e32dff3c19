"""What a policy says may be gone on from is what a longer prompt would have computed itself."""

import pytest
import torch

from covering import covered
from driving import advance, decode, prefill
from trials import COMBINED, PROMPT, fresh, plan_of, small_llm, tolerance
from winnow import Plan
from winnow.engine.services import admit
from winnow.policies.registry import POLICIES
from winnow.runtime.sequence import Prefix

# Of the shorter prompt nothing is evicted, and so nothing is scored; of the longer one some is.
FITS = (
    "locret(budget=33, chunk=6, stabilizers=3, local=4)",
    "sirllm(budget=33, chunk=6, sink=2, recent=2, local=4)",
    "snapkv(budget=33, chunk=6, window=4, kernel=3, local=4, positions='compact')",
    "h2o(budget=33, chunk=6, recent=4, local=4, decode_chunk=None)",
)
# The shorter prompt is too short for the budgets of layers, or for the votes, of the longer one.
SHORT = (
    "locret(budget=18, chunk=6, stabilizers=3, local=4, by_layer='pyramid')",
    "h2o(budget=18, chunk=6, recent=4, local=4, by_layer='pyramid')",
    "snapkv(budget=33, chunk=6, window=12, kernel=3, local=4, decode_chunk=3)",
    "sirllm(budget=33, chunk=6, sink=2, recent=2, local=4, surprisal_of='repeat', decode_chunk=3)",
)
EVERY = [*(plan_of(name, policy.trial) for name, policy in POLICIES.items()), *map(Plan.parse, COMBINED + FITS + SHORT)]
LONGER = 38  # tokens of the prompt that goes on
AT = (9, 20, PROMPT - 1, PROMPT, PROMPT + 4)
# What trials say of 31 prompt tokens and 4 after them; of others nothing needs to be gone on from.
EXPECTED = {
    "full": 35, "whole": 35, "plain": 35, "everything": 35, "dense": 35, "streaming": 35, "swiftkv": 35,
    "sink_recent": 31, "quest": 31, "sketch": 31, "tidal": 31, "slowfast": 31,
    "locret": 24, "random_heads": 24, "snapkv": 24, "scissorhands": 24, "sirllm": 24, "h2o": 24,
    "lococo": 30, "lococo_locret": 30,
    "lazyllm": 26, "static_prune": 26, "speed": 28, "pop": 30, "quantized": 30,
    "random_drop": 0, "prompt_compression": 0, "hf_quantized": 0, "mapped": 0, "kvzip": 0, "kvzap": 0,
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_how_much_may_be_gone_on_from(name, text):
    llm, plan = small_llm("llama"), plan_of(name, POLICIES[name].trial)
    deep = plan.compute.full_depth(text[:PROMPT], llm.services)
    assert plan.prefix_stable(PROMPT + 4, deep) == EXPECTED[name]
    assert all(plan.prefix_stable(n, deep) <= n for n in range(PROMPT + 5))


def stable(plan, n, *states):
    """The most tokens up to `n` that all of these sequences, or prompts, say may be gone on from."""
    while (agreed := min(plan.prefix_stable(n, state.deep) for state in states)) < n:
        n = agreed
    return n


def seen(llm, plan, text, at):
    """A sequence of the shorter prompt, and new tokens after it, that has seen `at` tokens."""
    state, prompt = fresh(llm, plan, text[:LONGER])
    for start in range(0, min(at, PROMPT), 7):
        advance(llm.decoder, [(state, prompt[start : min(start + 7, at)])], decode=False)
    for token in text[PROMPT:at]:
        decode(llm.decoder, [(state, token)])
    return state


@covered(plan=EVERY, family=("llama", "gemma2", "smollm3"), alone=(False, True), together=1)
def test_a_prompt_that_goes_on_is_as_if_computed_from_its_start(plan, family, alone, text):
    """Its logits, and the rows that it has not computed."""
    llm = small_llm(family)
    whole, prompt = fresh(llm, plan, text, LONGER)
    rows = [
        prefill(llm.decoder, whole, prompt, 7),
        *(decode(llm.decoder, [(whole, token)])[0] for token in text[LONGER:]),
    ]
    ends = {stable(plan, at, fresh(llm, plan, text)[0], whole) for at in AT} - {0}
    for at in ends:
        before = seen(llm, plan, text, at)
        begun = before.fork()
        state, ids = admit(
            llm.decoder,
            llm.tokenizer,
            plan,
            text[:LONGER],
            len(text) - LONGER,
            llm.prefill_chunk,
            Prefix(begun, at, alone),
        )
        got = [prefill(llm.decoder, state, ids[at:], 7)]
        got += [decode(llm.decoder, [(state, token)])[0] for token in text[LONGER:]]
        torch.testing.assert_close(torch.stack(got), torch.stack(rows), rtol=0, atol=tolerance(plan))
        assert state.stats.cached_tokens == at
        if at <= before.deep.start:  # the rows of an answer may go through more layers
            assert state.stats.rows_computed + before.stats.rows_computed == whole.stats.rows_computed
        assert (state.stats.rows_full, state.stats.units_full) == (whole.stats.rows_full, whole.stats.units_full)
        if plan.compute.identity:
            assert before.stats.rows_computed == at * llm.decoder.shape.layers
        before.release()
