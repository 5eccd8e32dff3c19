"""The adapters that ship with the package fit the model that ships with it."""

import random

import pytest

from winnow import LLM, SamplingParams
from winnow.errors import PlanError
from winnow.tasks import render, task


@pytest.mark.parametrize("cutoff", [2, 3, 4, 5, 6, 7])
def test_a_bundled_adapter_answers_under_its_plan(cutoff: int) -> None:
    llm = LLM("needle", adapter=f"needle-speed-{cutoff}")
    assert llm.plan.compute.resolved(llm.decoder.shape).cutoff == cutoff  # type: ignore[attr-defined]
    passkey = task("passkey")
    example = passkey.example(random.Random(0), tokens=1024, tokenizer=llm.tokenizer, depth=0.5)
    [out] = llm.generate([render(example, llm.tokenizer)], SamplingParams(max_tokens=example.max_tokens))
    assert passkey.score(example, out.text) == 1
    layers, tokens = llm.decoder.shape.layers, out.stats.prompt_tokens
    steps = out.stats.new_tokens - 1
    # The first token's rows above the cutoff are not among them: they are computed once per model.
    assert out.stats.rows_computed == cutoff * (tokens - 1) + layers + layers * steps
    with pytest.raises(PlanError, match=f"needle-speed-{cutoff} was trained for"):
        llm.generate("Hello", plan=f"speed(cutoff={cutoff - 1})")
