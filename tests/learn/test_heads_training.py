"""Training of retaining heads: the loss and its steps, whole runs, what can be resumed, what is left behind."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from adapters_for_tests import save_adapter
from learning import keys, log, same, tiny_llm, turns, write
from models import CONFIGS, small_model
from tiny import tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM
from winnow.errors import InputError, ModelError
from winnow.learn import heads_learner
from winnow.learn.heads import train_heads
from winnow.learn.heads_learner import HeadsLearner, errors, overlap
from winnow.learn.heads_recipe import HeadsRecipe
from winnow.learn.labels import Labelled, Sample, label
from winnow.learn.run import Report
from winnow.learn.samples import read_samples, sample_order
from winnow.runtime.decoder import Decoder
from winnow.runtime.heads import HeadsConfig, RetainingHeads

QUICK = HeadsRecipe(width=8, steps=6, learning_rate=5e-3, length=64, save_every=2, log_every=4, validate_every=3)
FILES = ["README.md", "config.json", "log.jsonl", "retaining_heads.safetensors", "winnow.json"]
CONFIG = HeadsConfig("base", "0", layers=3, q_heads=2, kv_heads=2, head_dim=2, width=5, activation="silu")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Seven conversations of one and two turns, of different lengths."""
    return write(tmp_path / "data.jsonl", [*keys(4, 1), *turns(3)])


def train(data: Path, out: Path, recipe: HeadsRecipe = QUICK, **settings: Any) -> Report:
    return train_heads(tiny_llm(), data, out, recipe, **settings)


def weights(out: Path) -> dict[str, Tensor]:
    return load_file(out / "retaining_heads.safetensors")


def random_labels(tokens: int = 11) -> Labelled:
    inputs = [torch.randn(tokens, CONFIG.inputs) for _ in range(CONFIG.layers)]
    return Labelled(inputs, [3 * torch.randn(CONFIG.kv_heads, tokens) for _ in range(CONFIG.layers)])


def test_errors_are_those_of_the_definition() -> None:
    scores = torch.tensor([[0.0, 0.5, 3.5], [1.0, 1.0, 0.0]])
    targets = torch.tensor([[0.5, 0.5, 0.0], [-1.0, 1.25, 0.0]])
    # Smooth L1: 0.125, 0, 3; 1.5, 0.03125, 0. Squared differences of neighbours: 0.25, 9; 0, 1.
    regression, smoothness = errors(scores, targets)
    assert regression.item() == pytest.approx((0.125 + 3 + 1.5 + 0.03125) / 6)
    assert smoothness.item() == pytest.approx((0.25 + 9 + 0 + 1) / 4)


def test_overlap_is_counted_per_head_over_the_best_tenth() -> None:
    targets = torch.arange(20.0).expand(2, 20)  # the best two are 18 and 19
    scores = torch.zeros(2, 20)
    scores[0, [19, 3]] = scores[1, [18, 19]] = torch.tensor([2.0, 1.0])
    assert overlap(scores, targets).item() == 0.75
    assert overlap(scores[:, :5], targets[:, :5]).item() == 0.0  # fewer than ten tokens: the best one


def test_the_learning_rate_rises_over_two_thirds_and_falls_to_nothing() -> None:
    recipe = HeadsRecipe()
    places = (0, 1, 1000, 2000, 2500, 2999)
    assert [recipe.rate(step) for step in places] == pytest.approx([0, 2.5e-7, 2.5e-4, 5e-4, 2.5e-4, 5e-7])


@pytest.mark.parametrize(("bf16", "has"), [(False, True), (True, True), (True, False)])
def test_layer_by_layer_is_the_whole_loss_at_once(bf16: bool, has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    no_bf16 = torch.float32  # what products are taken in where the device has none of bfloat16
    monkeypatch.setattr(heads_learner, "multiplied_in", lambda kind, device: kind if has else no_bf16)
    recipe = HeadsRecipe(width=5, steps=6, learning_rate=1e-2, bf16=bf16)
    samples = [random_labels() for _ in range(recipe.steps)]
    learner = HeadsLearner(RetainingHeads.random(CONFIG, seed=0), recipe)
    joint = RetainingHeads.random(CONFIG, seed=0)
    parameters = [weight.requires_grad_() for weight in (*joint.first, *joint.second)]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, betas=(0.9, 0.95))
    clipped = False
    for step, sample in enumerate(samples):
        regression, smoothness = torch.zeros(()), torch.zeros(())
        for layer in range(3):
            hidden = sample.inputs[layer] @ joint.first[layer].T
            if bf16 and has:
                hidden = sample.inputs[layer].bfloat16() @ joint.first[layer].T.bfloat16()
            scores = (F.silu(hidden).float() @ joint.second[layer].T).T
            regression = regression + F.smooth_l1_loss(scores, sample.targets[layer]) / 3
            smoothness = smoothness + (scores[:, 1:] - scores[:, :-1]).pow(2).mean()
        loss = regression + 0.0025 * smoothness
        optimizer.zero_grad()
        loss.backward()
        clipped |= any(bool((parameter.grad.abs() > 0.5).any()) for parameter in parameters)
        for parameter in parameters:
            parameter.grad.clamp_(-0.5, 0.5)
        optimizer.param_groups[0]["lr"] = 1e-2 * (step / 4 if step < 4 else (6 - step) / 2)
        optimizer.step()
        figures = learner.learn(step, sample)
        assert figures.loss == pytest.approx(loss.item(), rel=1e-5)
        assert (figures.regression, figures.smoothness) == pytest.approx((regression.item(), smoothness.item()), 1e-5)
    torch.testing.assert_close([*learner.heads.first, *learner.heads.second], parameters, rtol=0, atol=1e-6)
    moved = (parameters[0] - RetainingHeads.random(CONFIG, seed=0).first[0]).abs().max()
    assert moved > 1e-2


def test_updates_of_a_step_are_steps_by_runs_of_its_tokens() -> None:
    sample = random_labels(11)
    recipes = [HeadsRecipe(steps=6, updates=count) for count in (1, 3)]
    alone, many = (HeadsLearner(RetainingHeads.random(CONFIG, seed=0), recipe) for recipe in recipes)
    found = many.learn(2, sample)
    runs = [(0, 3), (3, 7), (7, 11)]
    losses = [
        alone.learn(2, Labelled([x[at:to] for x in sample.inputs], [y[:, at:to] for y in sample.targets])).loss
        for at, to in runs
    ]
    assert found.loss == pytest.approx(sum(losses) / 3)
    torch.testing.assert_close(many.weights, alone.weights, rtol=0, atol=0)
    assert [len(each.inputs[0]) for each in random_labels(5).split(9)] == [2, 3]


def test_gradients_are_clipped_by_value() -> None:
    sample = random_labels()
    large = Labelled([100 * x for x in sample.inputs], [1e4 * y for y in sample.targets])
    learner = HeadsLearner(RetainingHeads.random(CONFIG, seed=0), HeadsRecipe(steps=4))
    learner.learn(0, large)
    greatest = max(weight.grad.abs().max().item() for weight in learner.heads.second)  # type: ignore[union-attr]
    assert greatest == 0.5


@pytest.mark.parametrize("name", CONFIGS)
def test_heads_of_every_family_learn(name: str, text: list[int]) -> None:
    decoder = Decoder(small_model(name))
    heads = RetainingHeads.random(HeadsConfig.of(decoder.model, decoder.shape, 8), seed=0)
    learner = HeadsLearner(heads, HeadsRecipe(width=8, steps=20, learning_rate=2e-2))
    sample = label(decoder, Sample(text, 30), length=100, chunk=16)
    losses = [learner.learn(step, sample).loss for step in range(20)]
    assert losses[-1] < losses[0]


def test_samples_come_in_random_order_again_and_again() -> None:
    order = list(islice(sample_order(7, 3), 21))
    passes = [order[:7], order[7:14], order[14:]]
    assert all(sorted(each) == list(range(7)) for each in passes)
    assert passes[0] != passes[1] != passes[2]
    assert order == list(islice(sample_order(7, 3), 21)) != list(islice(sample_order(7, 4), 21))


def test_the_prompt_ends_where_the_first_answer_begins(data: Path) -> None:
    llm = tiny_llm()
    for sample, messages in zip(read_samples(llm, data).items[4:], range(3), strict=True):
        prompt = llm.render([{"role": "user", "content": f"user {messages}"}])
        assert list(sample.ids[: sample.prompt]) == prompt
        rest = llm.tokenizer.decode(sample.ids[sample.prompt :])  # type: ignore[union-attr]
        assert rest == f"assistant {messages}<user>user {messages}<assistant>assistant {messages}"


def test_measuring_changes_nothing_that_is_learnt(data: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.jsonl", [{"prompt": "Which letter follows a?", "answer": "b"}] * 2)
    with_it = train(data, tmp_path / "with", validation=other)
    train(data, tmp_path / "without")
    same(weights(tmp_path / "with"), weights(tmp_path / "without"))
    lines = [line for line in log(tmp_path / "with") if "held_out" in line]
    assert [line["step"] for line in lines] == [3, 6]
    assert with_it.record["result"]["held_out"] == lines[-1]["held_out"]
    assert with_it.record["data"]["validation"]["samples"] == 2
    # By hand: the heads that were saved, on the one text.
    llm = tiny_llm()
    sample = read_samples(llm, other).items[0]
    learner = HeadsLearner(RetainingHeads.load(tmp_path / "with"), QUICK)
    figures = learner.judge(label(llm.decoder, sample, length=QUICK.length, chunk=32))
    assert vars(figures) == pytest.approx(lines[-1]["held_out"], rel=1e-5)


def test_heads_are_saved_as_they_were(data: Path, tmp_path: Path) -> None:
    train(data, tmp_path / "out")
    tiny_llm(heads=tmp_path / "out").save_heads(tmp_path / "copy")
    same(weights(tmp_path / "out"), weights(tmp_path / "copy"))


def test_a_bfloat16_model_gets_heads_in_its_dtype(data: Path, tmp_path: Path) -> None:
    report = train_heads(tiny_llm(dtype="bfloat16"), data, tmp_path / "out", QUICK)
    assert report.record["result"]["loss_last"] < report.record["result"]["loss_first"]
    assert {tensor.dtype for tensor in weights(tmp_path / "out").values()} == {torch.bfloat16}


def test_heads_over_an_adapter_name_it(data: Path, tmp_path: Path) -> None:
    adapter, out = save_adapter(tmp_path / "mine"), tmp_path / "out"
    record = train_heads(tiny_llm(adapter=adapter), data, out, QUICK).record
    assert record["base"]["adapter"] == "mine"
    card = (out / "README.md").read_text(encoding="utf-8")
    name = record["base"]["name"]
    assert f"# Retaining heads for {name} with mine" in card
    assert f'LLM("{name}", adapter="mine", heads="DIRECTORY")' in card
    tiny_llm(adapter=adapter, heads=out)
    with pytest.raises(ModelError, match="other weights, perhaps an adapter's"):
        tiny_llm(heads=out)
    assert "adapter" not in train(data, tmp_path / "plain").record["base"]


def test_texts_longer_than_the_model_or_without_a_prompt_are_left_out(tmp_path: Path) -> None:
    rows = [{"prompt": "a question", "answer": "b"}, {"prompt": "c" * 40000, "answer": "d"}]
    about = read_samples(tiny_llm(), write(tmp_path / "data.jsonl", rows)).about
    assert (about["samples"], about["too_long"], about["too_short"]) == (1, 1, 0)
    bare = LLM(tiny_model(), tokenizer=byte_tokenizer(template=None))
    rows = [{"prompt": "a question", "answer": "b"}, {"prompt": "c", "answer": "d"}]
    about = read_samples(bare, write(tmp_path / "bare.jsonl", rows)).about
    assert (about["samples"], about["too_long"], about["too_short"]) == (1, 0, 1)


def test_a_loss_that_is_no_number_ends_the_run_and_spares_the_weights() -> None:
    learner = HeadsLearner(RetainingHeads.random(CONFIG, seed=0), HeadsRecipe(steps=4))
    sample = random_labels()
    sample.targets[1][0, 3] = float("nan")
    with pytest.raises(InputError, match="the loss is nan at step 3; use a smaller learning rate"):
        learner.learn(2, sample)
    torch.testing.assert_close(learner.heads.first, RetainingHeads.random(CONFIG, seed=0).first, rtol=0, atol=0)
