"""Training runs on a tiny model: what is learnt, what can be repeated and resumed, what is left behind."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from covering import covered
from learning import keys, log, same, stop_at, turns, write
from tiny import save_tiny_model, tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, SamplingParams
from winnow.errors import InputError, ModelError, PlanError
from winnow.learn import trainer
from winnow.learn.chat import read_conversations
from winnow.learn.held_out import HeldOut
from winnow.learn.packed import packed_logits
from winnow.learn.recipe import Lora, Recipe
from winnow.learn.reference import Reference
from winnow.learn.rows import IGNORED, Batch
from winnow.learn.run import Progress
from winnow.learn.sft import Report, train_speed
from winnow.policies.compute.speed import Speed
from winnow.runtime.decoder import Decoder

HALF = Speed(cutoff=1)  # of the tiny model's two layers
QUICK = Recipe(steps=4, learning_rate=5e-3, batch=2, save_every=2, log_every=1, lora=Lora(rank=4))
FULL = replace(QUICK, lora=None)
RECIPES = {"lora": QUICK, "full": FULL}
DEPTHS = {"speed": HALF, "full-depth": Speed(cutoff=1.0)}
PLAN = "speed(cutoff=1, anchors='bos', decode_from='header', self_only=False)"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve conversations of one and two turns, of different lengths."""
    return write(tmp_path_factory.mktemp("data") / "data.jsonl", [*keys(6, 1), *turns(6)])


def train(data: Path, out: Path, policy: Speed = HALF, recipe: Recipe = QUICK, **settings: Any) -> Report:
    return train_speed(tiny_model(), byte_tokenizer(), data, out, policy, recipe, **settings)


def weights(out: Path, recipe: Recipe) -> dict[str, Tensor]:
    return load_file(out / ("model.safetensors" if recipe.lora is None else "adapter_model.safetensors"))


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended; tests leave it as it is."""
    out = tmp_path_factory.mktemp("trained") / "out"
    train(data, out)
    return out


@pytest.fixture(scope="module")
def stopped(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted after its first checkpoint; tests leave it as it is."""
    out = tmp_path_factory.mktemp("stopped") / "out"
    with pytest.raises(KeyboardInterrupt):
        train(data, out, recipe=replace(QUICK, save_every=1), progress=stop_at(2))
    return out


@covered(kind=RECIPES, depth=DEPTHS)
def test_the_loss_falls(data: Path, tmp_path: Path, kind: str, depth: str) -> None:
    steps: list[Progress] = []
    recipe = replace(RECIPES[kind], steps=30)
    report = train(data, tmp_path / "out", DEPTHS[depth], recipe, progress=steps.append)
    assert report.result.loss_last < 0.7 * report.result.loss_first
    assert [each.step for each in steps] == list(range(1, 31))
    assert (
        steps[-1].tokens
        == report.result.tokens
        == 5 * sum(len(each.ids) for each in read_conversations(data, byte_tokenizer(), length=1000).items)
    )  # 30 steps of 2 are 5 passes over 12


@pytest.mark.parametrize("recipe", [QUICK, FULL], ids=["lora", "full"])
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(data: Path, tmp_path: Path, recipe: Recipe) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    lines = train(data, whole, recipe=recipe).result

    with pytest.raises(KeyboardInterrupt):  # one step behind the checkpoint
        train(data, parts, recipe=recipe, progress=stop_at(3))
    assert (parts / "checkpoint-2").is_dir()
    (parts / "checkpoint-9").mkdir()  # what an interrupted save leaves
    resumed = train(data, parts, recipe=recipe, resume=True).result
    same(weights(whole, recipe), weights(parts, recipe))
    assert (resumed.steps, resumed.tokens) == (lines.steps, lines.tokens)
    assert (resumed.loss_first, resumed.loss_last) == pytest.approx((lines.loss_first, lines.loss_last))
    assert [line["step"] for line in log(parts)] == [1, 2, 3, 4]
    assert not list(parts.glob("checkpoint-*"))


def test_a_line_of_the_log_is_of_all_steps_since_the_one_before(data: Path, tmp_path: Path) -> None:
    """Also behind a pause: there is one at every checkpoint."""
    seldom = replace(QUICK, steps=4, log_every=3)
    train(data, tmp_path / "whole", recipe=seldom)
    with pytest.raises(KeyboardInterrupt):
        train(data, tmp_path / "parts", recipe=seldom, progress=stop_at(3))
    train(data, tmp_path / "parts", recipe=seldom, resume=True)
    whole, parts = ([(line["step"], line["loss"]) for line in log(tmp_path / name)] for name in ("whole", "parts"))
    assert [step for step, _ in whole] == [1, 2, 3, 4]
    assert parts == whole


def test_accumulating_gradients_is_one_large_batch(data: Path, tmp_path: Path) -> None:
    large, small = replace(FULL, batch=6), replace(FULL, batch=2, accumulate=3)
    train(data, tmp_path / "large", recipe=large)
    train(data, tmp_path / "small", recipe=small)
    same(weights(tmp_path / "large", large), weights(tmp_path / "small", small), tolerance=1e-5)


def test_every_arm_sees_the_same_batches(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Batch.of
    seen: list[list[int]] = []

    def of(*arguments: Any) -> Batch:
        batch = made(*arguments)
        seen.append(batch.input_ids[0].tolist())
        return batch

    monkeypatch.setattr(Batch, "of", of)
    orders = []
    for arm, recipe in ((HALF, replace(QUICK, lora=Lora(dropout=0.5))), (Speed(cutoff=1.0), FULL)):
        seen.clear()
        train(data, tmp_path / f"{arm.cutoff}", arm, replace(recipe, steps=14, save_every=20))
        orders.append(list(seen))
    assert orders[0] == orders[1]
    assert orders[0][:6] != orders[0][6:12]  # another order in the second epoch


def test_an_adapter_loads_with_its_plan_and_answers_as_in_training(data: Path, trained: Path) -> None:
    llm = LLM(tiny_model(), tokenizer=byte_tokenizer(), adapter=trained)
    assert str(llm.plan) == PLAN
    row = read_conversations(data, byte_tokenizer(), length=1000).items[0]
    base = tiny_model()
    adapted = PeftModel.from_pretrained(base, str(trained))
    decoder = Decoder(base)
    with decoder.driving(), torch.no_grad():
        expected = packed_logits(decoder, Batch.of([row], "bos", "header"), HALF)
    merged = llm.logits(list(row.ids[:-1]), decode_from=row.turns[0].answer)
    torch.testing.assert_close(merged, expected, rtol=0, atol=1e-4)
    adapted.unload()
    with pytest.raises(ModelError, match="make a new LLM"):
        decoder.refresh()
    decoder = Decoder(base)
    with decoder.driving(), torch.no_grad():
        untrained = packed_logits(decoder, Batch.of([row], "bos", "header"), HALF)
    assert (untrained - expected).abs().max() > 0.1


def test_training_an_adapter_gives_the_model_back_as_it_was(data: Path, tmp_path: Path) -> None:
    model, before = tiny_model(), tiny_model().state_dict()
    train_speed(model, byte_tokenizer(), data, tmp_path / "out", HALF, QUICK)
    same(dict(model.state_dict()), dict(before))
    assert "forward" not in vars(model)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not model.training


def test_a_whole_model_is_an_ordinary_directory_that_knows_its_plan(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = train(data, out, recipe=FULL)
    llm = LLM(out)
    assert str(llm.plan) == PLAN
    assert llm.chat([{"role": "user", "content": "Key?"}], SamplingParams(max_tokens=2))[0].token_ids
    with pytest.raises(PlanError, match="trained for speed"):
        llm.generate("a", plan="speed(cutoff=1, anchors='none')")
    assert sorted(report.files) == sorted(path.name for path in out.iterdir())


def test_what_is_left_behind_says_what_it_is_and_names_no_path(data: Path, tmp_path: Path) -> None:
    base = save_tiny_model(tmp_path / "some-model")
    llm = LLM(base)
    train_speed(llm.model, llm.tokenizer, data, tmp_path / "out", HALF, QUICK)  # type: ignore[arg-type]
    record = json.loads((tmp_path / "out" / "winnow.json").read_text(encoding="utf-8"))
    assert record["plan"] == PLAN
    assert record["base"]["name"] == "some-model"
    assert record["data"] | {"sha256": 0} == {
        "file": "data.jsonl", "conversations": 12, "too_long": 0, "tokens": record["data"]["tokens"],
        "supervised": 6 + 12 * 11, "sha256": 0,
    }  # fmt: skip
    assert record["recipe"]["lora"]["rank"] == 4
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert 'LLM("some-model", adapter="DIRECTORY")' in card
    assert card.startswith("---\nbase_model: some-model\nlibrary_name: peft\n")
    for path in (tmp_path / "out").iterdir():
        said = path.read_bytes().decode("utf-8", errors="replace")
        assert str(tmp_path) not in said, path.name
        assert str(data.parent) not in said, path.name


@pytest.mark.parametrize("has", [True, False], ids=["bfloat16", "no bfloat16"])
def test_mixed_precision_and_checkpointing_train_too(
    has: bool, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "multiplied_in", lambda kind, device: kind if has else torch.float32)
    plain = train(data, tmp_path / "plain", recipe=FULL).result
    train(data, tmp_path / "saved", recipe=replace(FULL, checkpointing=True))
    same(weights(tmp_path / "plain", FULL), weights(tmp_path / "saved", FULL), tolerance=1e-6)
    model = tiny_model()
    half = train_speed(model, byte_tokenizer(), data, tmp_path / "half", HALF, replace(FULL, bf16=True)).result
    assert half.loss_last == pytest.approx(plain.loss_last, rel=0.05)
    assert (half.loss_last != plain.loss_last) == has
    assert not {"forward", "_original_forward"} & vars(model).keys()


def test_an_adapter_for_a_bfloat16_model_is_float32(data: Path, tmp_path: Path) -> None:
    model: PreTrainedModel = tiny_model().bfloat16()  # type: ignore[assignment]
    train_speed(model, byte_tokenizer(), data, tmp_path / "out", HALF, QUICK)
    assert {tensor.dtype for tensor in weights(tmp_path / "out", QUICK).values()} == {torch.float32}
    assert LLM(tiny_model().bfloat16(), adapter=tmp_path / "out").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data, out: train(data, out), "is not empty; resume the run in it"),
        (
            lambda data, out: train(data, out, recipe=replace(QUICK, learning_rate=1e-4), resume=True),
            "learning_rate 0.005",
        ),
        (lambda data, out: train(data, out, recipe=FULL, resume=True), "lora True before, False now"),
        (lambda data, out: train(data, out, Speed(cutoff=1.0), resume=True), "plan .*speed.* before, 'full' now"),
        (lambda data, out: train(out.with_name("other.jsonl"), out, resume=True), "data '"),
    ],
    ids=["fresh", "rate", "lora", "plan", "data"],
)
def test_another_run_in_the_same_directory_is_refused(
    change: Callable[[Path, Path], Any], message: str, data: Path, stopped: Path, tmp_path: Path
) -> None:
    shutil.copytree(stopped, tmp_path / "out")
    (tmp_path / "other.jsonl").write_text('{"prompt": "a", "answer": "b"}', encoding="utf-8")
    with pytest.raises(InputError, match=message):
        change(data, tmp_path / "out")


def test_another_dtype_is_another_run(data: Path, tmp_path: Path) -> None:
    """But of one that has not noted its own; and a line of the log that a full disk has torn is done without."""
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        train(data, out, progress=stop_at(3))
    with (out / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 2, "held_out": {"loss": 1.0}')
    record = json.loads((out / "winnow.json").read_text(encoding="utf-8"))
    record["base"]["dtype"] = "torch.bfloat16"
    (out / "winnow.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(InputError, match=r"dtype 'torch.bfloat16' before, 'torch.float32' now"):
        train(data, out, resume=True)
    del record["base"]["dtype"]
    (out / "winnow.json").write_text(json.dumps(record), encoding="utf-8")
    train(data, out, resume=True)
    assert [line["step"] for line in log(out)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "file", ["trainer_state.json", "adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"]
)
@pytest.mark.parametrize("gone", [False, True], ids=["cut", "gone"])
def test_a_damaged_checkpoint_is_not_gone_on_from(
    file: str, gone: bool, data: Path, stopped: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(stopped, out)
    [path] = out.glob(f"checkpoint-*/{file}")
    if gone:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-40])
    if gone and file == "trainer_state.json":  # it is the last to be written
        with pytest.raises(InputError, match="stopped before its first checkpoint"):
            train(data, out, resume=True)
    else:
        with pytest.raises(ModelError, match=r"is damaged .*remove it, to go on from one before, or start again"):
            train(data, out, resume=True)


def test_a_disk_that_fills_up_keeps_no_half_of_a_checkpoint(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **settings: object) -> None:
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 1102400 vs 1102288")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="is the disk full") as raised:
        train(data, tmp_path / "out")
    assert raised.value.filename == str(tmp_path / "out")
    assert not list((tmp_path / "out").glob("checkpoint-*"))


def test_there_must_be_something_to_resume(data: Path, trained: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no run to resume.*winnow\.json"):
        train(data, tmp_path / "out", resume=True)
    with pytest.raises(KeyboardInterrupt):
        train(data, tmp_path / "out", progress=stop_at(1))
    with pytest.raises(InputError, match="stopped before its first checkpoint"):
        train(data, tmp_path / "out", resume=True)
    with pytest.raises(InputError, match="is finished"):
        train(data, trained, resume=True)


def test_what_cannot_be_trained_is_refused_before_any_work(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(PlanError, match="above the model's 2 layers"):
        train(data, out, Speed(cutoff=3))
    with pytest.raises(InputError, match="line 1: anchors='first:400'"):
        train(data, out, Speed(cutoff=1, anchors="first:400"))
    with pytest.raises(InputError, match=r'bfloat16, too coarse.*dtype="float32"'):
        train_speed(tiny_model().bfloat16(), byte_tokenizer(), data, out, HALF, FULL)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"no chat template.*decode_from='last:1'"):
        train_speed(tiny_model(), byte_tokenizer(None), data, out, HALF, QUICK)
    with pytest.raises(InputError, match="lora targets 'nothing'"):
        train(data, out, recipe=replace(QUICK, lora=Lora(targets="nothing")))
    with pytest.raises(InputError, match="is a file"):
        train(data, data)
    tmp_path.joinpath("full").mkdir()
    tmp_path.joinpath("full", "notes.txt").touch()
    with pytest.raises(InputError, match="is not empty; give a new directory"):
        train(data, tmp_path / "full")
    assert not out.exists()


def test_a_loss_that_is_no_number_ends_the_run(data: Path, tmp_path: Path) -> None:
    model = tiny_model()
    model.model.norm.weight.data[0] = torch.nan
    with pytest.raises(InputError, match="the loss is nan at step 1"):
        train_speed(model, byte_tokenizer(), data, tmp_path / "out", HALF, QUICK)


@torch.no_grad()
def test_figures_of_what_is_held_out(data: Path, tmp_path: Path) -> None:
    """The loss, and the divergence from what the model said with all layers computed."""
    model = tiny_model()
    decoder, conversations = Decoder(model), read_conversations(data, byte_tokenizer(), length=1000).items
    found = HeldOut.of(Reference(decoder, decoder), HALF, conversations).figures(decoder, HALF)
    loss = kl = count = 0.0
    for each in conversations:
        batch = Batch.of([each], "bos", "header")
        learnt = batch.labels[batch.labels != IGNORED]
        now, before = (packed_logits(decoder, batch, policy).log_softmax(-1) for policy in (HALF, Speed(cutoff=1.0)))
        loss -= float(now.gather(1, learnt[:, None]).sum())
        kl += float((before.exp() * (before - now)).sum())
        count += len(learnt)
    assert found == pytest.approx({"loss": loss / count, "kl": kl / count}, rel=1e-5)
    assert found["kl"] > 0.001


def test_what_is_held_out_is_measured_before_and_while_it_learns(data: Path, tmp_path: Path) -> None:
    """Its KL is 0 at full depth for a model that has learnt nothing."""
    held_out, out = write(tmp_path / "held-out.jsonl", [*keys(3, 2), *turns(2)]), tmp_path / "out"
    recipe = replace(QUICK, steps=5, validate_every=2, log_every=2)
    report = train(data, out, DEPTHS["full-depth"], recipe, validation=held_out)
    lines = [line for line in log(out) if "held_out" in line]
    assert [line["step"] for line in lines] == [0, 2, 4, 5]
    assert lines[0]["held_out"]["kl"] == pytest.approx(0, abs=1e-6)
    assert lines[-1]["held_out"]["kl"] > 0.01
    assert report.record["result"]["held_out"] == lines[-1]["held_out"]
    assert report.record["data"]["validation"]["conversations"] == 5


def test_learning_does_not_depend_on_what_is_held_out(data: Path, tmp_path: Path) -> None:
    held_out = write(tmp_path / "held-out.jsonl", keys(3, 2))
    recipe = replace(QUICK, lora=Lora(rank=4, dropout=0.2))
    train(data, tmp_path / "alone", recipe=recipe)
    train(data, tmp_path / "watched", recipe=replace(recipe, validate_every=1), validation=held_out)
    same(weights(tmp_path / "alone", recipe), weights(tmp_path / "watched", recipe))


def test_checkpoints_come_by_the_clock_too(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        train(data, out, recipe=replace(QUICK, save_every=1000, save_minutes=1e-9), progress=stop_at(3))
    assert (out / "checkpoint-2").is_dir()
    assert train(data, out, recipe=QUICK, resume=True).result.steps == 4  # how often may change
