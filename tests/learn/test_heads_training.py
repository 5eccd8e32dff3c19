"""Training of retaining heads: the loss and its steps, whole runs, what can be resumed, what is left behind."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from models import CONFIGS, small_model
from tiny import save_tiny_model, tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, SamplingParams
from winnow.errors import InputError, ModelError
from winnow.learn.heads import train_heads
from winnow.learn.heads_learner import HeadsLearner, errors, overlap
from winnow.learn.heads_recipe import HeadsRecipe
from winnow.learn.labels import Labelled, Sample, label
from winnow.learn.run import Progress, Report
from winnow.learn.samples import read_samples, sample_order
from winnow.runtime.decoder import Decoder
from winnow.runtime.heads import HeadsConfig, RetainingHeads

QUICK = HeadsRecipe(width=8, steps=6, learning_rate=5e-3, length=64, save_every=2, log_every=4, validate_every=3)
FILES = ["README.md", "config.json", "log.jsonl", "retaining_heads.safetensors", "winnow.json"]
CONFIG = HeadsConfig("base", "0", layers=3, q_heads=2, kv_heads=2, head_dim=2, width=5, activation="silu")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Seven conversations of one and two turns, of different lengths."""
    rows: list[dict[str, Any]] = [
        {"prompt": f"The key is {n}. " * (1 + n % 3) + "Key?", "answer": f"{n}"} for n in range(4)
    ]
    rows += [
        {"messages": [{"role": role, "content": f"{role} {n}"} for role in ("user", "assistant") * 2]} for n in range(3)
    ]
    return write(tmp_path / "data.jsonl", rows)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def tiny_llm() -> LLM:
    return LLM(tiny_model(), tokenizer=byte_tokenizer(), prefill_chunk=32)


def train(data: Path, out: Path, recipe: HeadsRecipe = QUICK, **settings: Any) -> Report:
    return train_heads(tiny_llm(), data, out, recipe, **settings)


def weights(out: Path) -> dict[str, Tensor]:
    return load_file(out / "retaining_heads.safetensors")


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=0, atol=0)


def log(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]


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


@pytest.mark.parametrize("bf16", [False, True])
def test_layer_by_layer_is_the_whole_loss_at_once(bf16: bool) -> None:
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
            if bf16:
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


def test_a_run_learns_and_leaves_the_model_alone(data: Path, tmp_path: Path) -> None:
    llm, before = tiny_llm(), tiny_model().state_dict()
    steps: list[Progress] = []
    recipe = replace(QUICK, steps=60, learning_rate=2e-2)
    report = train_heads(llm, data, tmp_path / "out", recipe, progress=steps.append)
    result = report.record["result"]
    assert result["loss_last"] < 0.6 * result["loss_first"]
    assert result["overlap_last"] > result["overlap_first"]
    assert [each.step for each in steps] == list(range(1, 61))
    order = list(islice(sample_order(7, 0), 60))
    items = read_samples(llm, data).items
    assert steps[-1].tokens == result["tokens"] == sum(len(items[index].ids) for index in order)
    assert report.files == FILES
    same(dict(llm.model.state_dict()), dict(before))
    assert all(parameter.requires_grad and parameter.grad is None for parameter in llm.model.parameters())


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


@pytest.mark.parametrize("bf16", [False, True])
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(data: Path, tmp_path: Path, bf16: bool) -> None:
    whole, parts, recipe = tmp_path / "whole", tmp_path / "parts", replace(QUICK, steps=10, bf16=bf16)
    expected = train(data, whole, recipe, validation=data).record["result"]

    def stop(progress: Progress) -> None:
        if progress.step == 7:  # one step behind the checkpoint
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(data, parts, recipe, validation=data, progress=stop)
    assert [path.name for path in parts.glob("checkpoint-*")] == ["checkpoint-6"]
    (parts / "checkpoint-8").mkdir()  # what an interrupted save leaves
    resumed = train(data, parts, recipe, validation=data, resume=True)
    same(weights(whole), weights(parts))
    assert {**resumed.record["result"], "seconds": 0} == {**expected, "seconds": 0}
    assert [{**line, "s": 0} for line in log(parts)] == [{**line, "s": 0} for line in log(whole)]
    assert [line["step"] for line in log(parts)] == [3, 4, 6, 8, 9, 10, 10]
    assert resumed.files == FILES


def test_another_run_is_not_resumed(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def stop(progress: Progress) -> None:
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(data, out, progress=stop)
    with pytest.raises(InputError, match="width 8 before, 9 now"):
        train(data, out, replace(QUICK, width=9), resume=True)
    with pytest.raises(InputError, match="not empty; resume the run in it"):
        train(data, out)
    with pytest.raises(InputError, match="data "):
        train(write(tmp_path / "other.jsonl", [{"prompt": "a longer one", "answer": "b"}]), out, resume=True)
    [state] = out.glob("checkpoint-*/state.safetensors")
    whole = state.read_bytes()
    state.write_bytes(pickle.dumps(whole))  # what is no safetensors is not unpickled
    with pytest.raises(ModelError, match=r"checkpoint-\d is damaged .*; remove it, or start again"):
        train(data, out, resume=True)
    state.write_bytes(whole)
    train(data, out, resume=True)
    with pytest.raises(InputError, match="is finished"):
        train(data, out, resume=True)
    with pytest.raises(InputError, match="no run to resume"):
        train(data, tmp_path / "new", resume=True)


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


def test_heads_are_used_by_name_and_by_directory_and_refused_elsewhere(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    train(data, out)
    plan, params = f"locret(budget=16, chunk=16, local=4, heads='{out}')", SamplingParams(max_tokens=3)
    prompt = "The key is 3. " * 6
    named = tiny_llm().generate(prompt, params, plan=plan)[0]
    given = LLM(tiny_model(), tokenizer=byte_tokenizer(), heads=out, prefill_chunk=32)
    assert given.generate(prompt, params, plan="locret(budget=16, chunk=16, local=4)")[0].token_ids == named.token_ids
    given.save_heads(tmp_path / "copy")
    same(weights(out), weights(tmp_path / "copy"))
    with pytest.raises(ModelError, match="other weights"):
        LLM(small_model(), heads=out)


def test_a_bfloat16_model_gets_heads_in_its_dtype(data: Path, tmp_path: Path) -> None:
    llm = LLM(tiny_model(), tokenizer=byte_tokenizer(), dtype="bfloat16")
    report = train_heads(llm, data, tmp_path / "out", QUICK)
    assert report.record["result"]["loss_last"] < report.record["result"]["loss_first"]
    assert {tensor.dtype for tensor in weights(tmp_path / "out").values()} == {torch.bfloat16}


def test_what_is_left_behind_says_what_it_is_and_names_no_path(data: Path, tmp_path: Path) -> None:
    base, out = save_tiny_model(tmp_path / "some-model"), tmp_path / "out"
    train_heads(LLM(base), data, out, QUICK)
    config = RetainingHeads.load(out).config
    record = json.loads((out / "winnow.json").read_text(encoding="utf-8"))
    assert (config.base, config.width, config.layers) == ("some-model", 8, 2)
    assert (config.recipe, config.data, config.result) == (record["recipe"], record["data"], record["result"])
    assert config.data["file"] == "data.jsonl"
    assert (config.data["samples"], config.data["too_long"], config.data["too_short"]) == (7, 0, 0)
    card = (out / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nbase_model: some-model\n")
    assert 'LLM("some-model", heads="DIRECTORY")' in card
    for path in out.iterdir():
        assert str(tmp_path) not in path.read_bytes().decode("utf-8", errors="replace"), path.name


def test_texts_longer_than_the_model_or_without_a_prompt_are_left_out(tmp_path: Path) -> None:
    rows = [{"prompt": "a question", "answer": "b"}, {"prompt": "c" * 40000, "answer": "d"}]
    about = read_samples(tiny_llm(), write(tmp_path / "data.jsonl", rows)).about
    assert (about["samples"], about["too_long"], about["too_short"]) == (1, 1, 0)
    bare = LLM(tiny_model(), tokenizer=byte_tokenizer(template=None))
    rows = [{"prompt": "a question", "answer": "b"}, {"prompt": "c", "answer": "d"}]
    about = read_samples(bare, write(tmp_path / "bare.jsonl", rows)).about
    assert (about["samples"], about["too_long"], about["too_short"]) == (1, 0, 1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "holds no conversation"),
        ([{"prompt": "c" * 40000, "answer": "d"}], "all 1 conversations are longer than 32768 tokens"),
        ([{"prompt": "a"}], "data.jsonl, line 1: an object with prompt"),
    ],
)
def test_data_that_cannot_be_used_is_refused_before_any_work(
    rows: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "data.jsonl", rows)
    with pytest.raises(InputError, match=message):
        train(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_tokenizer_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no tokenizer"):
        train_heads(LLM(tiny_model()), data, tmp_path / "out")


def test_a_loss_that_is_no_number_ends_the_run_and_spares_the_weights() -> None:
    learner = HeadsLearner(RetainingHeads.random(CONFIG, seed=0), HeadsRecipe(steps=4))
    sample = random_labels()
    sample.targets[1][0, 3] = float("nan")
    with pytest.raises(InputError, match="the loss is nan at step 3; use a smaller learning rate"):
        learner.learn(2, sample)
    torch.testing.assert_close(learner.heads.first, RetainingHeads.random(CONFIG, seed=0).first, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HeadsRecipe(width=0), "width=0 must be at least 1"),
        (lambda: HeadsRecipe(steps=1), "steps=1 must be at least 2"),
        (lambda: HeadsRecipe(length=1), "length=1 must be at least 2"),
        (lambda: HeadsRecipe(learning_rate=0), "learning_rate=0 must be above 0"),
        (lambda: HeadsRecipe(smoothing=-1), "smoothing=-1 must be at least 0"),
        (lambda: HeadsRecipe(warmup=1.0), "warmup=1.0 is a share"),
        (lambda: HeadsRecipe(steps=1.5), "steps=1.5 must be a whole number"),  # type: ignore[arg-type]
    ],
)
def test_a_recipe_is_checked(make: Callable[[], HeadsRecipe], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
