"""Requests that come, run side by side and are aborted in every order: each is what it would be alone."""

import random

import pytest
import torch

from trials import COMBINED, plan_of, small_llm
from winnow import LLM, SamplingParams
from winnow.engine.engine import Engine
from winnow.policies.registry import POLICIES

PLANS = [*(str(plan_of(name, policy.trial)) for name, policy in POLICIES.items()), *COMBINED]
ALWAYS, ALL = 30, 1000
SEEDS = [pytest.param(seed, marks=() if seed < ALWAYS else pytest.mark.full) for seed in range(ALL)]


def held(engine: Engine) -> int:
    """Bytes that all sequences of an engine hold now."""
    return sum(sum(job.state.held()) for entry in engine._running for job in entry.jobs if job.state.caches)


def alone(llm: LLM, asked: dict, tokens: list[int]) -> torch.Tensor:
    """Log-probabilities [new tokens, vocab] of the request by itself, fed the tokens that it gave in company."""
    prompt = asked["prompt"]
    rows = llm.logits([*prompt, *tokens[:-1]], decode_from=len(prompt), plan=asked["plan"])
    return rows.log_softmax(-1)


@pytest.mark.parametrize("seed", SEEDS)
def test_company_changes_nothing(seed):
    rng = random.Random(seed)
    llm = small_llm(rng.choice(("llama", "gemma2", "llama-9-3")))
    asked = [
        {
            "prompt": [rng.randrange(3, 97) for _ in range(rng.choice((12, 20, 33, 47)))],
            "plan": rng.choice(PLANS),
            "new": rng.randint(1, 6),
            "n": rng.choice((1, 1, 1, 2)),
            "arrives": rng.randrange(8),
            "aborted": rng.randrange(1, 9) if rng.random() < 0.25 else None,
        }
        for _ in range(rng.randint(2, 5))
    ]
    most = rng.choice((1, 3, 8, 64))
    sizes = Engine(llm, max_step_tokens=most)
    for request in asked:
        drawn = {"n": request["n"], "temperature": 1.0, "seed": seed} if request["n"] > 1 else {}
        request["params"] = SamplingParams(max_tokens=request["new"], ignore_eos=True, logprobs=4, **drawn)
        sizes.add(request["prompt"], request["params"], plan=request["plan"])
    largest = max(entry.alive * entry.bound for entry in sizes._waiting)
    engine = llm.engine(
        max_step_tokens=most,
        max_step_s=rng.choice((None, None, 1e-3)),
        max_cache_bytes=rng.choice((None, int(largest * rng.uniform(1.3, 3)))),
        max_sequences=rng.choice((1, 3, 8)),
    )
    ids, done, turn = {}, {}, 0
    while len(done) < sum(request["n"] for request in asked):
        for number, request in enumerate(asked):
            if request["arrives"] == turn:
                ids[engine.add(request["prompt"], request["params"], plan=request["plan"])] = number
            if request["aborted"] == turn - request["arrives"]:
                engine.abort(next(id for id, at in ids.items() if at == number))
        for output in engine.step():
            if output.completion is not None:
                done[ids[output.request_id], output.sample_index] = output.completion
        assert held(engine) <= engine.reserved_bytes
        assert engine.max_cache_bytes is None or engine.reserved_bytes <= engine.max_cache_bytes
        turn += 1
    assert engine.idle
    assert (engine.reserved_bytes, held(engine)) == (0, 0)
    for (number, _), completion in done.items():
        request = asked[number]
        assert completion.error is None
        assert completion.finish_reason == "length" or request["aborted"] is not None
        if not completion.token_ids:
            continue
        expected = alone(llm, request, completion.token_ids)
        for row, token, report in zip(expected, completion.token_ids, completion.logprobs, strict=True):
            assert row[token] >= row.max() - 1e-4 or request["n"] > 1
            for each, value in report.items():
                assert value == pytest.approx(float(row[each]), abs=1e-4)
