"""Training of gates: what heads give out, the loss and its gradient, whole runs, what can be resumed."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from learning import keys, tiny_llm, write
from models import small_model
from tiny import save_tiny_model
from winnow import LLM
from winnow.errors import ModelError
from winnow.learn.attention import attend_alone
from winnow.learn.gates import train_gates
from winnow.learn.gates_learner import GatesLearner
from winnow.learn.gates_recipe import GatesRecipe
from winnow.learn.labels import Sample
from winnow.models.head_gates import read_gates
from winnow.runtime.decoder import Decoder

QUICK = GatesRecipe(steps=6, sink=2, recent=6, save_every=2, log_every=4, validate_every=3)
FILES = ["head_gates.json", "log.jsonl", "winnow.json"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "data.jsonl", keys(7, 1))


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


def test_every_head_has_a_gate_from_0_to_1(data: Path, tmp_path: Path) -> None:
    llm = tiny_llm()
    train_gates(llm, data, tmp_path / "out", replace(QUICK, steps=40, learning_rate=0.1, penalty=20.0))
    gates = torch.tensor(read_gates(tmp_path / "out").layers)
    assert gates.shape == (llm.decoder.shape.layers, llm.decoder.shape.kv_heads)
    assert 0 <= gates.min() <= gates.max() <= 1


def test_packed_weights_are_refused_before_any_work(data: Path, tmp_path: Path) -> None:
    llm = LLM(save_tiny_model(tmp_path / "model"), weights="int4")
    with pytest.raises(ModelError, match="packed weights have no gradients; load the model with weights='dense'"):
        train_gates(llm, data, tmp_path / "out", QUICK)
    assert not (tmp_path / "out").exists()
