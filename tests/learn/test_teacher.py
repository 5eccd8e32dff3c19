"""Runs that begin with an adapter, and runs that learn what a teacher says."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from learning import keys, log, same, stop_at, turns, write
from tiny import tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM
from winnow.errors import InputError, ModelError
from winnow.learn.recipe import Lora, Recipe
from winnow.learn.sft import Report, train_speed
from winnow.policies.compute.speed import Speed

HALF, WHOLE = Speed(cutoff=1), Speed(cutoff=1.0)  # of the tiny model's two layers
RECIPE = Recipe(steps=12, learning_rate=5e-3, batch=2, save_every=2, log_every=1, validate_every=100, lora=Lora(rank=4))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data") / "data.jsonl", [*keys(6, 1), *turns(6)])


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("held-out") / "held-out.jsonl", [*keys(3, 2), *turns(2)])


@pytest.fixture(scope="module")
def adapters(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`whole`, trained with all layers, and `half`, for prompts in one of two."""
    made = tmp_path_factory.mktemp("adapters")
    train(data, made / "whole", WHOLE)
    train(data, made / "half", HALF)
    return made


def train(data: Path, out: Path, policy: Speed = HALF, recipe: Recipe = RECIPE, **settings: Any) -> Report:
    return train_speed(tiny_model(), byte_tokenizer(), data, out, policy, recipe, **settings)


def figures(out: Path) -> list[dict[str, float]]:
    return [line["held_out"] for line in log(out) if "held_out" in line]


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "adapter_model.safetensors")


def test_who_says_what_its_teacher_says_learns_nothing(data: Path, tmp_path: Path) -> None:
    train(data, tmp_path / "out", WHOLE, replace(RECIPE, steps=1), teacher="base")
    train(data, tmp_path / "labels", WHOLE, replace(RECIPE, steps=1))
    [taught], [other] = log(tmp_path / "out"), log(tmp_path / "labels")
    assert (taught["kl"], taught["grad_norm"]) == pytest.approx((0, 0), abs=1e-5)
    assert (other["loss"] > 1, other["grad_norm"] > 0.1) == (True, True)


@pytest.mark.parametrize("teacher", ["base", "whole"])
def test_a_shallow_prompt_comes_to_say_what_the_teacher_says(
    teacher: str, data: Path, held_out: Path, adapters: Path, tmp_path: Path
) -> None:
    named = teacher if teacher == "base" else str(adapters / teacher)
    recipe = replace(RECIPE, steps=40, learning_rate=2e-3)
    report = train(data, tmp_path / "taught", recipe=recipe, validation=held_out, teacher=named)
    before, after = figures(tmp_path / "taught")
    assert after["kl"] < 0.6 * before["kl"]
    said = report.record["teacher"]
    assert said == "base" if teacher == "base" else said.startswith("whole, fingerprint ")
    assert f"by | {said} |" in (tmp_path / "taught" / "README.md").read_text(encoding="utf-8")
    assert sorted(report.files) == [
        "README.md", "adapter_config.json", "adapter_model.safetensors", "log.jsonl", "winnow.json",
    ]  # fmt: skip
    assert LLM(tiny_model(), tokenizer=byte_tokenizer(), adapter=tmp_path / "taught").plan.compute.name == "speed"


def test_the_loss_is_the_divergence_from_the_teacher(data: Path, adapters: Path, tmp_path: Path) -> None:
    """On what is learnt from, so that both figures are of the same tokens and neither has a label in it."""
    recipe = replace(RECIPE, steps=1, batch=12)
    for teacher in ("base", str(adapters / "whole")):
        out = tmp_path / Path(teacher).name
        train(data, out, recipe=recipe, validation=data, teacher=teacher)
        first = next(line["kl"] for line in log(out) if "kl" in line)
        assert first == pytest.approx(figures(out)[0]["kl"], rel=1e-4)
    assert figures(tmp_path / "base")[0]["kl"] != pytest.approx(figures(tmp_path / "whole")[0]["kl"], rel=0.1)


def test_a_conversation_may_name_the_model_without_adapters(data: Path, adapters: Path, tmp_path: Path) -> None:
    """In one batch with others, which the run's own teacher teaches."""
    rows = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
    here, there = rows[:4], rows[4:]
    whole, recipe = str(adapters / "whole"), replace(RECIPE, steps=1, batch=12)

    def first(name: str, rows: list[dict[str, Any]], teacher: str) -> tuple[float, int]:
        file, out = write(tmp_path / f"{name}.jsonl", rows), tmp_path / name
        report = train(file, out, recipe=recipe, validation=file, teacher=teacher)
        kl = next(line["kl"] for line in log(out) if "kl" in line)
        assert kl == pytest.approx(figures(out)[0]["kl"], rel=1e-4)
        return kl, report.record["data"]["supervised"]

    by_base, taught = first("here", here, "base"), first("there", there, whole)
    both = first("both", [*({**row, "teacher": "base"} for row in here), *there], whole)
    assert both[1] == by_base[1] + taught[1]
    assert json.loads((tmp_path / "both" / "winnow.json").read_text())["data"]["by_base"] == 4
    assert "| taught by the model without adapters | 4 of them |" in (tmp_path / "both" / "README.md").read_text()
    assert both[0] == pytest.approx(sum(kl * count for kl, count in (by_base, taught)) / both[1], rel=1e-4)
    assert first("whole", rows, whole)[0] != pytest.approx(both[0], rel=0.01)


def test_a_run_begins_with_the_adapter_that_it_is_given(
    data: Path, held_out: Path, adapters: Path, tmp_path: Path
) -> None:
    recipe = replace(RECIPE, learning_rate=1e-9, steps=1)
    report = train(data, tmp_path / "out", recipe=recipe, validation=held_out, begin=str(adapters / "half"))
    same(weights(tmp_path / "out"), weights(adapters / "half"), tolerance=1e-6)
    assert report.record["begin"].startswith("half, fingerprint ")
    train(data, tmp_path / "fresh", recipe=recipe, validation=held_out)
    begun, fresh = (figures(tmp_path / name)[0] for name in ("out", "fresh"))
    assert begun["loss"] < fresh["loss"] - 0.1
    assert begun["kl"] > fresh["kl"]  # from the model without an adapter, for both


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(data: Path, adapters: Path, tmp_path: Path) -> None:
    recipe, given = replace(RECIPE, steps=4), {name: str(adapters / "whole") for name in ("begin", "teacher")}
    train(data, tmp_path / "whole", recipe=recipe, **given)
    with pytest.raises(KeyboardInterrupt):
        train(data, tmp_path / "parts", recipe=recipe, progress=stop_at(3), **given)
    with pytest.raises(InputError, match=r"teacher 'whole, fingerprint .*' before, 'base' now"):
        train(data, tmp_path / "parts", recipe=recipe, resume=True, **(given | {"teacher": "base"}))
    train(data, tmp_path / "parts", recipe=recipe, resume=True, **given)
    same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    assert not [path for path in (tmp_path / "parts").iterdir() if path.is_dir()]


def test_what_can_be_no_teacher_or_beginning_is_refused_before_any_work(
    data: Path, adapters: Path, tmp_path: Path
) -> None:
    out, half = tmp_path / "out", str(adapters / "half")
    with pytest.raises(InputError, match=r"half was trained for speed.*with --cutoff 1\.0, or base"):
        train(data, out, teacher=half)
    asks = write(tmp_path / "asks.jsonl", [*keys(2, 1), {**keys(1, 1)[0], "teacher": "base"}])
    with pytest.raises(InputError, match=r"^asks.jsonl, line 3: a teacher, and this run has none"):
        train(asks, out)
    write(asks, [{**keys(1, 1)[0], "teacher": "whole"}])
    for given in {"data": asks, "teacher": "base"}, {"data": data, "validation": asks}:
        with pytest.raises(InputError, match=r"^asks.jsonl, line 1: teacher 'whole'; write \"base\", or leave it out"):
            train(out=out, **given)
    with pytest.raises(InputError, match="not about all parameters"):
        train(data, out, recipe=replace(RECIPE, lora=None), teacher="base")
    with pytest.raises(InputError, match=r"half has rank 4 and alpha 32.*give --lora.rank 4 --lora.alpha 32"):
        train(data, out, recipe=replace(RECIPE, lora=Lora(rank=8)), begin=half)
    with pytest.raises(InputError, match=r"half is for other layers; .*--lora.targets down_proj,gate_proj,k_proj,"):
        train(data, out, recipe=replace(RECIPE, lora=Lora(rank=4, targets="q_proj")), begin=half)
    with pytest.raises(ModelError, match="holds no adapter"):
        train(data, out, begin=str(data.parent))
    other = tiny_model()
    with torch.no_grad():
        other.model.norm.weight += 1.0
    with pytest.raises(ModelError, match=r"half was trained on .*, and this model, .*, has other weights"):
        train_speed(other, byte_tokenizer(), data, out, HALF, RECIPE, begin=half)
    assert not out.exists()


def changed(adapter: Path, out: Path, tensors: dict[str, torch.Tensor] | None = None, **settings: Any) -> str:
    """A copy from elsewhere, which says nothing of its base, with other tensors or settings; returns its directory."""
    out.mkdir()
    save_file(weights(adapter) if tensors is None else tensors, out / "adapter_model.safetensors")
    told = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8")) | settings
    (out / "adapter_config.json").write_text(json.dumps(told), encoding="utf-8")
    return str(out)


@pytest.mark.parametrize(
    ("settings", "change", "message"),
    [
        ({"use_rslora": True}, None, "sets use_rslora"),
        ({"rank_pattern": {"q_proj": 2}}, None, "sets rank_pattern"),
        ({"use_dora": True}, None, "sets use_dora"),
        ({"bias": "all"}, None, "sets bias 'all', which changes the model"),
        ({"init_lora_weights": "pissa"}, None, "was begun with pissa, which changes the weights beneath it"),
        ({"peft_type": "IA3"}, None, "is IA3, and only LORA"),
        ({}, lambda name, value: {name: value * torch.nan}, "not finite"),
        ({}, lambda name, value: {name: value[:, :-1] if "lora_A" in name else value}, "do not fit a layer"),
        ({}, lambda name, value: {} if "lora_B" in name else {name: value}, "do not fit a layer"),
        ({}, lambda name, value: {name.replace("q_proj", "r_proj"): value}, "r_proj, which the model does not have"),
    ],
)  # fmt: skip
def test_what_is_no_plain_adapter_of_the_model_is_refused_before_any_work(
    settings: dict[str, Any], change: Any, message: str, data: Path, adapters: Path, tmp_path: Path
) -> None:
    """peft would put some of them into the model itself, and leave it changed."""
    tensors = {}
    for name, value in weights(adapters / "whole").items():
        tensors |= {name: value} if change is None else change(name, value)
    given = changed(adapters / "whole", tmp_path / "given", {n: v.contiguous() for n, v in tensors.items()}, **settings)
    model, before = tiny_model(), tiny_model().state_dict()
    for way in ("begin", "teacher"):
        with pytest.raises(ModelError, match=message) as refused:
            train_speed(model, byte_tokenizer(), data, tmp_path / "out", HALF, RECIPE, **{way: given})
        assert "\n" not in str(refused.value)
    same(dict(model.state_dict()), dict(before))
    assert not (tmp_path / "out").exists()


def test_an_adapter_that_says_nothing_of_its_base_is_taken(data: Path, adapters: Path, tmp_path: Path) -> None:
    """From elsewhere, in bfloat16."""
    halves = {name: each.bfloat16() for name, each in weights(adapters / "whole").items()}
    plain = changed(adapters / "whole", tmp_path / "plain", halves)
    with warnings.catch_warnings(action="error", category=UserWarning):  # peft's, as it looks up a base on the hub
        report = train(
            data, tmp_path / "out", recipe=replace(RECIPE, steps=3, save_every=1), begin=plain, teacher=plain
        )
    assert {each.dtype for each in weights(tmp_path / "out").values()} == {torch.float32}
    assert report.result.loss_first > 0.001
