"""Training of indexers: the attention they learn, the loss and its gradient, whole runs, what can be resumed."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from covering import covered
from learning import keys, tiny_llm, write
from models import small_model
from tiny import tiny_model
from tokenizers_for_tests import byte_tokenizer
from trials import small_indexers, small_llm
from winnow import LLM
from winnow.errors import InputError, ModelError
from winnow.learn.indexers import train_indexers
from winnow.learn.indexers_learner import IndexersLearner, best_mass, divergence, drawn, lessons
from winnow.learn.indexers_recipe import IndexersRecipe
from winnow.learn.labels import Sample
from winnow.models.packed import quantize_model

QUICK = IndexersRecipe(
    heads=4, dim=8, steps=6, learning_rate=1e-2, length=100, rows=40, save_every=2, log_every=4, validate_every=3
)  # fmt: skip
FILES = ["README.md", "config.json", "indexers.safetensors", "log.jsonl", "winnow.json"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "data.jsonl", keys(5, 4))


@covered(name=["llama", "llama-9-3", "gemma2", "smollm3", "gpt_oss"], rows=[4, 100])
def test_what_is_learnt_is_what_the_stock_model_attends_to(name: str, rows: int, text: list[int]) -> None:
    """Of layers without a window: the hidden states that enter, and the attention of all heads, added up to 1."""
    llm = small_llm(name)
    eager = copy.deepcopy(llm.model)
    eager.set_attn_implementation("eager")
    with torch.inference_mode():
        out = eager(torch.tensor([text]), output_attentions=True, output_hidden_states=True, use_cache=False)
    taught = [*lessons(llm.decoder, Sample(text, 30), replace(QUICK, rows=rows), seed=3)]
    assert [each.layer for each in taught] == [at for at, of in enumerate(llm.decoder.shape.windows) if of is None]
    for each in taught:
        summed = out.attentions[each.layer][0].float().sum(0)[each.asking]
        torch.testing.assert_close(each.target, summed / summed.sum(-1, keepdim=True), rtol=0, atol=1e-5)
        torch.testing.assert_close(each.hidden, out.hidden_states[each.layer][0], rtol=0, atol=1e-4)
        assert len(each.asking) == min(rows, len(text))


def test_rows_behind_the_prompt_come_first() -> None:
    assert drawn(10, 7, 100, seed=0).tolist() == [*range(10)]
    assert set(drawn(10, 7, 4, seed=0).tolist()) > {7, 8, 9}
    assert min(drawn(10, 7, 2, seed=0).tolist()) >= 7
    assert len(drawn(10, 50, 4, seed=0)) == 4
    assert len({tuple(drawn(100, 90, 20, seed).tolist()) for seed in range(5)}) == 5


def test_the_figures_are_those_of_their_definitions() -> None:
    target = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.3, 0.4]])
    scores = torch.tensor([[1.0, 2.0, -1.0, float("-inf")], [0.0, 3.0, 1.0, 2.0]])
    expected = 0.0
    for p, row in zip(target.tolist(), scores.softmax(-1).tolist(), strict=True):
        expected += sum(a * (torch.tensor(a) / torch.tensor(b)).log().item() for a, b in zip(p, row, strict=True) if a)
    assert divergence(target, scores).item() == pytest.approx(expected / 2, rel=1e-5)
    assert best_mass(target, scores, torch.tensor([2, 3])).item() == pytest.approx((0.3 + 0.2) / 2)
    wide = torch.full((1, 40), 1 / 40)
    assert best_mass(wide, torch.arange(40.0)[None], torch.tensor([39])).item() == pytest.approx(4 / 40)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_layer_by_layer_is_the_whole_loss_at_once(name: str, text: list[int]) -> None:
    """A step from the same weights, by a loss written out: the mean over layers, of all at once."""
    llm, sample, recipe = LLM(small_model(name)), Sample(text, 30), replace(QUICK, rows=20)
    learner, joint = (IndexersLearner(small_indexers(llm), recipe) for _ in range(2))
    parts = []
    for layer, hidden, asking, target in lessons(llm.decoder, sample, recipe, recipe.seed):
        scores = joint.indexers.scores(layer, hidden, joint.indexers.keys(layer, hidden))[asking]
        for row, p, mine in zip(asking.tolist(), target, scores, strict=True):
            parts.append((p[: row + 1] * (p[: row + 1].log() - mine[: row + 1].log_softmax(0))).sum() / len(asking))
    loss = torch.stack(parts).sum() / len(joint.indexers.layers)
    loss.backward()
    joint.update(recipe.rate(0))
    assert learner.judge(llm.decoder, sample)["loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert learner.learn(0, llm.decoder, sample)["loss"] == pytest.approx(loss.item(), rel=1e-4)
    for mine, its in zip(learner.weights, joint.weights, strict=True):
        torch.testing.assert_close(mine.grad, its.grad, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-4)


def test_packed_weights_are_learnt_from_as_they_are(data: Path, tmp_path: Path) -> None:
    model = tiny_model()
    quantize_model(model)
    report = train_indexers(LLM(model, tokenizer=byte_tokenizer()), data, tmp_path / "out", QUICK)
    assert report.record["result"]["loss_last"] > 0


def test_what_cannot_be_trained_is_refused_before_any_work(data: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="dim=500 is more than the model's head_dim"):
        train_indexers(tiny_llm(), data, tmp_path / "out", replace(QUICK, dim=500))
    with pytest.raises(ModelError, match="all layers of the model have sliding windows"):
        train_indexers(LLM(small_model("mistral")), data, tmp_path / "out", QUICK)
    assert not (tmp_path / "out").exists()


def test_a_loss_that_is_no_number_ends_the_run(text: list[int]) -> None:
    llm = LLM(small_model())
    indexers = small_indexers(llm)
    indexers.layers[0].key.fill_(torch.nan)
    with pytest.raises(InputError, match="the loss is nan at step 1; use a smaller learning rate"):
        IndexersLearner(indexers, QUICK).learn(0, llm.decoder, Sample(text, 30))
