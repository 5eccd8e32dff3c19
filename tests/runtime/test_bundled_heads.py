"""The retaining heads that ship with the package fit the model that ships with it."""

import random

from winnow import LLM, SamplingParams
from winnow.tasks import render, task


def test_the_bundled_model_keeps_what_is_asked_for_later() -> None:
    """A number in 2,048 tokens, 128 of which stay: the heads have not seen the question."""
    llm = LLM("needle", plan="locret(budget=128)")
    number = task("number")
    example = number.example(random.Random(0), tokens=2048, tokenizer=llm.tokenizer, depth=0.4)
    ids, params = render(example, llm.tokenizer), SamplingParams(max_tokens=example.max_tokens)
    [out] = llm.generate([ids], params)
    assert number.score(example, out.text) == 1
    shape = llm.decoder.shape
    unit = shape.layers * shape.kv_heads * shape.unit_bytes
    assert out.stats.peak_cache_bytes == (128 + 512) * unit
    assert out.stats.cache_bytes == (128 + 100 + out.stats.new_tokens - 1) * unit
    [blind] = llm.generate([ids], params, plan="random_heads(budget=128)")
    assert number.score(example, blind.text) == 0


def test_the_bundled_heads_are_found_by_the_weights_in_either_dtype() -> None:
    for dtype in ("bfloat16", "float32"):
        llm = LLM("needle", dtype=dtype)
        assert llm.decoder.heads(None).config.base == "needle"
        assert llm.decoder.heads(None).first[0].dtype == llm.dtype
