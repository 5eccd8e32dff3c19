"""Requests that come, run side by side and are aborted in every order: each is what it would be alone."""

import functools
import random
from collections.abc import Iterator

import pytest
import torch

import covering
from models import small_model
from trials import COMBINED, held, plan_of, small_convolutions, small_indexers, small_llm, tolerance
from winnow import LLM, Completion, Plan, SamplingParams
from winnow.engine.engine import Engine
from winnow.models.packed import quantize_model
from winnow.policies.registry import POLICIES
from winnow.runtime.heads import HeadsConfig, RetainingHeads

PLANS = [*(str(plan_of(name, policy.trial)) for name, policy in POLICIES.items()), *COMBINED]
ALWAYS, ALL = 30, 1000
CHUNKS = (1, 2, 7, 64)  # in which a prompt by itself is tried where it is close which units are read
MOST = ALL if covering.EVERY else ALWAYS


def marked(seed: int, *marks: pytest.MarkDecorator) -> object:
    return pytest.param(seed, marks=(*marks, *[pytest.mark.full] * (seed >= ALWAYS)))


def alone(llm: LLM, asked: dict, tokens: list[int], chunk: int | None = None) -> torch.Tensor:
    """Log-probabilities [new tokens, vocab] of the request by itself, fed the tokens that it gave in company.

    chunk: in which its prompt comes; None: the model's.
    """
    prompt = asked["prompt"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llm, "prefill_chunk", chunk or llm.prefill_chunk)
        rows = llm.logits([*prompt, *tokens[:-1]], decode_from=len(prompt), plan=asked["plan"])
    return torch.stack([row.log_softmax(-1) for row in rows])


def differs(completion: Completion, expected: torch.Tensor, close: float, *, greedy: bool) -> bool:
    """Whether a log-probability that it reports is another, or a greedy token is not one of the likeliest."""
    for row, token, report in zip(expected, completion.token_ids, completion.logprobs, strict=True):
        if greedy and row[token] < row.max() - close:
            return True
        if any(value != pytest.approx(float(row[each]), abs=close) for each, value in report.items()):
            return True
    return False


@functools.cache
def exact_llm(name: str, packed: bool) -> LLM:
    """In bfloat16, and to the bit."""
    model = small_model(name, dtype=torch.bfloat16)
    if packed:
        quantize_model(model)
    llm = LLM(model, prefill_chunk=10, deterministic=True)
    llm.decoder.default_heads = RetainingHeads.random(HeadsConfig.of(llm.model, llm.decoder.shape, 8, "repeat"), seed=1)
    llm.decoder.default_convolutions = small_convolutions(llm)
    llm.decoder.default_indexers = small_indexers(llm)
    return llm


def scheduled(llm: LLM, seed: int, rng: random.Random, lengths: tuple[int, ...]) -> Iterator[tuple[dict, Completion]]:
    """Random requests that come and are aborted at random; each with what became of it."""
    asked = [
        {
            "prompt": [rng.randrange(3, 97) for _ in range(rng.choice(lengths))],
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
    largest = max(entry.reserved for entry in sizes._waiting)
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
        assert completion.error is None
        assert completion.finish_reason == "length" or asked[number]["aborted"] is not None
        if completion.token_ids:
            yield asked[number], completion


@pytest.mark.parametrize("seed", map(marked, range(MOST)))
def test_company_changes_nothing(seed):
    rng = random.Random(seed)
    llm = small_llm(rng.choice(("llama", "gemma2", "llama-9-3")))
    for request, completion in scheduled(llm, seed, rng, (12, 20, 33, 47, 80)):
        close, greedy = max(1e-4, tolerance(Plan.parse(request["plan"]))), request["n"] == 1
        expected = alone(llm, request, completion.token_ids)
        if differs(completion, expected, close, greedy=greedy):
            # Where two units rank alike but for rounding, which of them is read hangs on the order of sums, by itself
            # as well: then it has to be what the request is by itself in some chunks.
            others = [alone(llm, request, completion.token_ids, chunk) for chunk in CHUNKS]
            assert any(not torch.allclose(each, expected, rtol=0, atol=close) for each in others), "it is another"
            assert not all(differs(completion, each, close, greedy=greedy) for each in others)


def drawn(seed):
    """A model, on how many threads it runs, and what its requests are drawn from."""
    rng = random.Random(seed)
    model = rng.choice((("qwen3", False), ("qwen3", True), ("llama-9-3", False), ("qwen3_moe", False)))
    return model, rng.choice((1, 2)), rng


# Two threads wait for each other at every operation where another worker has one of their cores.
@pytest.mark.parametrize("seed", [marked(seed, *[pytest.mark.threads] * (drawn(seed)[1] == 2)) for seed in range(MOST)])
def test_company_changes_no_bit_of_a_deterministic_model(seed):
    model, threads, rng = drawn(seed)
    llm = exact_llm(*model)
    torch.set_num_threads(threads)
    for request, completion in scheduled(llm, seed, rng, (12, 33, 70, 111)):
        expected = alone(llm, request, completion.token_ids)
        for row, report in zip(expected, completion.logprobs, strict=True):
            assert report == {each: float(row[each]) for each in report}


@pytest.mark.parametrize(("name", "packed"), [("qwen3", False), ("qwen3", True), ("qwen3_moe", False)])
def test_samples_of_a_deterministic_model_are_what_each_is_alone(name, packed):
    """Their prompt is longer than what forks copy anyway."""
    llm = exact_llm(name, packed)
    prompt = [(7 * at) % 90 + 3 for at in range(150)]
    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=8, ignore_eos=True, logprobs=2)
    for completion in llm.generate([prompt, prompt[:80]], params)[:3]:
        expected = alone(llm, {"prompt": prompt, "plan": "full"}, completion.token_ids)
        for row, report in zip(expected, completion.logprobs, strict=True):
            assert report == {each: float(row[each]) for each in report}


@pytest.mark.parametrize("pieces", [(16, 8, 4, 2), (16, 16), (9, 8, 4, 4)])
def test_scores_of_a_repeated_token_do_not_depend_on_the_pieces(pieces):
    """Token 80 comes three times; two of its units' scores, sums that nearly cancel, differ by rounding alone."""
    llm = small_llm("llama-9-3")
    prompt = [43, 89, 66, 10, 76, 44, 80, 10, 72, 12, 33, 75, 16, 69, 80, 75, 24, 79, 50, 96, 74, 4, 41, 8, 23, 44, 20]
    asked = {
        "prompt": [*prompt, 80, 9, 26, 62, 30, 74],
        "plan": "speed(cutoff=2, anchors='first:9') + locret(budget=9, chunk=6, local=4)",
    }
    engine = llm.engine()
    engine.add(asked["prompt"], SamplingParams(max_tokens=1, ignore_eos=True, logprobs=4), plan=asked["plan"])
    done = None
    for most in (*pieces, *(1,) * 40):
        engine.max_step_tokens = most
        done = done or next((output.completion for output in engine.step() if output.completion), None)
    assert done is not None
    [row] = alone(llm, asked, done.token_ids)
    assert done.logprobs[0] == pytest.approx({each: float(row[each]) for each in done.logprobs[0]}, abs=1e-4)
