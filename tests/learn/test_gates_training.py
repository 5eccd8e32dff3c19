"""Training of gates: what heads give out, the loss and its gradient, whole runs, what can be resumed."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from models import small_model
from tiny import save_tiny_model, tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, SamplingParams
from winnow.errors import InputError, ModelError
from winnow.learn.attention import attend_alone
from winnow.learn.gates import train_gates
from winnow.learn.gates_learner import GatesLearner
from winnow.learn.gates_recipe import GatesRecipe
from winnow.learn.labels import Sample
from winnow.learn.run import Progress, Report
from winnow.models.head_gates import read_gates
from winnow.runtime.decoder import Decoder

QUICK = GatesRecipe(steps=6, sink=2, recent=6, save_every=2, log_every=4, validate_every=3)
FILES = ["head_gates.json", "log.jsonl", "winnow.json"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    rows = [{"prompt": f"The key is {n}. " * (1 + n % 3) + "Key?", "answer": f"{n}"} for n in range(7)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def tiny_llm() -> LLM:
    return LLM(tiny_model(), tokenizer=byte_tokenizer(), prefill_chunk=32)


def train(data: Path, out: Path, recipe: GatesRecipe = QUICK, **settings: Any) -> Report:
    return train_gates(tiny_llm(), data, out, recipe, **settings)


@pytest.mark.parametrize(("anchors", "recent", "window"), [(2, 3, None), (0, 4, None), (3, 1, None), (2, 5, 4)])
def test_rows_see_the_first_and_the_recent(anchors: int, recent: int, window: int | None) -> None:
    q, k, v = torch.randn(12, 4, 8), torch.randn(2, 12, 8), torch.randn(2, 12, 8)
    at = torch.arange(12)
    got = attend_alone(q, k, v, at, anchors=anchors, recent=recent, scale=0.3, window=window, softcap=None, sinks=None)
    away = at[:, None] - at
    seen = (away >= 0) & ((away < recent) | (at < anchors)) & (away < (window or 99))
    keys, values = k.repeat_interleave(2, 0), v.repeat_interleave(2, 0)
    logits = torch.einsum("rhd,hud->hru", q, keys) * 0.3
    expected = logits.masked_fill(~seen, float("-inf")).softmax(-1) @ values
    torch.testing.assert_close(got, expected.transpose(0, 1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma2", "mistral", "llama-9-3"])
def test_the_gradient_is_that_of_the_loss(name: str, text: list[int]) -> None:
    """By differences; with all gates open nothing is lost, and a layer whose window is smaller has nothing to lose."""
    decoder = Decoder(small_model(name))
    learner, sample = GatesLearner(decoder, GatesRecipe(steps=2, sink=2, recent=8)), Sample(text[:30], 20)
    assert learner.judge(sample)["distance"] < 1e-9
    with torch.no_grad():
        learner.gates.copy_(torch.rand(learner.gates.shape, generator=torch.Generator().manual_seed(3)))
    error = learner.error(sample)
    [gradient] = torch.autograd.grad(error, [learner.gates])
    for layer in range(decoder.shape.layers):
        step = torch.zeros_like(learner.gates)
        step[layer, 0] = 1e-2
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                learner.gates.add_(sign * step)
                ends.append(learner.error(sample).item())
                learner.gates.sub_(sign * step)
        assert gradient[layer, 0].item() == pytest.approx((ends[0] - ends[1]) / 2e-2, rel=5e-2, abs=1e-5)
        if (window := decoder.shape.windows[layer]) is not None and window <= 8:
            assert gradient[layer].abs().max() < 1e-7


def test_the_learning_rate_rises_in_a_fifth_and_falls_in_another() -> None:
    recipe = GatesRecipe(steps=100, learning_rate=0.02)
    assert [recipe.rate(step) for step in (0, 9, 19, 50, 80, 90, 99)] == pytest.approx(
        [0.002, 0.01, 0.02, 0.02, 0.02, 0.01, 0.002]
    )


def test_a_run_learns_and_leaves_the_model_alone(data: Path, tmp_path: Path) -> None:
    llm, before = tiny_llm(), tiny_model().state_dict()
    steps: list[Progress] = []
    recipe = replace(QUICK, steps=40, learning_rate=0.1, penalty=20.0)
    report = train_gates(llm, data, tmp_path / "out", recipe, progress=steps.append)
    result = report.record["result"]
    assert result["loss_last"] < result["loss_first"]
    assert result["gate_last"] < 0.9 * result["gate_first"]
    assert [each.step for each in steps] == list(range(1, 41))
    assert report.files == FILES
    assert all((llm.model.state_dict()[name] == value).all() for name, value in before.items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in llm.model.parameters())
    gates = read_gates(tmp_path / "out")
    assert (len(gates.layers), len(gates.layers[0])) == (llm.decoder.shape.layers, llm.decoder.shape.kv_heads)
    assert all(0 <= gate <= 1 for layer in gates.layers for gate in layer)


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(data: Path, tmp_path: Path) -> None:
    whole, parts, recipe = tmp_path / "whole", tmp_path / "parts", replace(QUICK, steps=10)
    expected = train(data, whole, recipe, validation=data).record["result"]

    def stop(progress: Progress) -> None:
        if progress.step == 7:  # one step behind the checkpoint
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(data, parts, recipe, validation=data, progress=stop)
    assert [path.name for path in parts.glob("checkpoint-*")] == ["checkpoint-6"]
    with pytest.raises(InputError, match="recent 6 before, 7 now"):
        train(data, parts, replace(recipe, recent=7), validation=data, resume=True)
    resumed = train(data, parts, recipe, validation=data, resume=True)
    assert read_gates(parts).layers == read_gates(whole).layers
    assert {**resumed.record["result"], "seconds": 0} == {**expected, "seconds": 0}
    assert resumed.files == FILES


def test_gates_are_used_by_directory_and_refused_elsewhere(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    train(data, out)
    plan, params = f"duo(gates='{out}', sink=2, recent=8, chunk=16)", SamplingParams(max_tokens=3)
    assert tiny_llm().generate("The key is 3. " * 6, params, plan=plan)[0].stats.cache_bytes > 0
    with pytest.raises(ModelError, match="other weights"):
        LLM(small_model()).check([[5] * 9], plan=plan)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GatesRecipe(steps=1), "steps=1 must be at least 2"),
        (lambda: GatesRecipe(penalty=-1), "penalty=-1 must be at least 0"),
        (lambda: GatesRecipe(recent=0), "recent=0 must be at least 1"),
        (lambda: GatesRecipe(learning_rate=0), "learning_rate=0 must be above 0"),
    ],
)
def test_a_recipe_is_checked(make: Callable[[], GatesRecipe], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_packed_weights_are_refused_before_any_work(data: Path, tmp_path: Path) -> None:
    llm = LLM(save_tiny_model(tmp_path / "model"), weights="int4")
    with pytest.raises(ModelError, match="packed weights have no gradients; load the model with weights='dense'"):
        train_gates(llm, data, tmp_path / "out", QUICK)
    assert not (tmp_path / "out").exists()
