"""Every policy over packed weights is the same policy over the floats that they stand for."""

import functools

import torch

from covering import covered
from models import small_model
from packed_models import expanded
from trials import small_convolutions, small_indexers
from winnow import LLM, Plan
from winnow.models.packed import is_packed
from winnow.policies.registry import POLICIES
from winnow.runtime.heads import HeadsConfig, RetainingHeads

PROMPT = 31
PLANS = {name: Plan(**{policy.verb: policy(**policy.trial)}) for name, policy in POLICIES.items()}


@functools.cache
def both(family: str) -> tuple[LLM, LLM]:
    packed = LLM(small_model(family), weights="int4", prefill_chunk=10)
    dense = LLM(expanded(packed.model, small_model(family)), prefill_chunk=10)
    assert is_packed(packed.model)
    config = HeadsConfig.of(dense.model, dense.decoder.shape, 8, "repeat")
    for llm in (packed, dense):
        llm.decoder.default_heads = RetainingHeads.random(config, seed=1)
        llm.decoder.default_convolutions = small_convolutions(llm)
        llm.decoder.default_indexers = small_indexers(llm)
    return packed, dense


@covered(name=PLANS, family=("llama", "phi3", "gemma2", "gpt_oss"))
def test_a_plan_is_the_same(name: str, family: str, text: list[int]) -> None:
    packed, dense = (llm.logits(text, decode_from=PROMPT, plan=PLANS[name]) for llm in both(family))
    assert not packed.isnan().any()
    torch.testing.assert_close(packed, dense, rtol=0, atol=1e-4)
