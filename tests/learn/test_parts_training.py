"""What holds for the training of all parts beside a model: whole runs, what can be resumed, what is left behind."""

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from learning import keys, log, same, stop_at, tiny_llm, turns, write
from models import small_model
from tiny import save_tiny_model, tiny_model
from winnow import LLM, SamplingParams
from winnow.errors import InputError, ModelError
from winnow.learn.convolutions import read_texts, train_convolutions
from winnow.learn.convolutions_recipe import ConvolutionsRecipe
from winnow.learn.gates import train_gates
from winnow.learn.gates_recipe import GatesRecipe
from winnow.learn.heads import train_heads
from winnow.learn.heads_recipe import HeadsRecipe
from winnow.learn.indexers import train_indexers
from winnow.learn.indexers_recipe import IndexersRecipe
from winnow.learn.recipe import Recipe
from winnow.learn.run import Progress, Report
from winnow.learn.samples import read_samples, sample_order
from winnow.models.head_gates import read_gates
from winnow.runtime.trained import CONFIG

OFTEN: dict[str, Any] = {"steps": 6, "save_every": 2, "log_every": 4}
MEASURED: dict[str, Any] = {**OFTEN, "validate_every": 3}


@dataclass(frozen=True)
class Case:
    """train: of a recipe, with rows to learn from. made: the file that the parts are in. lesson: of a run that learns
    much, and what its result says then. other: a recipe that is not gone on with, and why. plan: one that takes the
    parts, but for `argument`, of which LLM has one too. config: what it says, of `recipe`."""

    train: Callable[..., Report]
    recipe: Any
    rows: list[dict[str, Any]]
    made: str
    lesson: dict[str, Any]
    learnt: Callable[[dict[str, Any]], bool]
    other: dict[str, Any]
    why: str
    plan: str
    argument: str
    of_llm: str | None
    config: dict[str, Any]
    written: str

    @property
    def measured(self) -> bool:
        """Whether there are figures of what is held out."""
        return hasattr(self.recipe, "validate_every")

    @property
    def files(self) -> list[str]:
        beside = [] if self.train is train_gates else [CONFIG, "README.md"]
        return sorted([self.made, "log.jsonl", "winnow.json", *beside])

    def held_out(self, data: Path) -> dict[str, Any]:
        return {"validation": data} if self.measured else {}

    def weights(self, out: Path) -> dict[str, Tensor]:
        if self.train is train_gates:
            return {"gates": torch.tensor(read_gates(out).layers, dtype=torch.float64)}
        return load_file(out / self.made)


HEADS = Case(
    train_heads,
    HeadsRecipe(width=8, learning_rate=5e-3, length=64, **MEASURED),
    [*keys(4, 1), *turns(3)],
    "retaining_heads.safetensors",
    {"steps": 60, "learning_rate": 2e-2},
    lambda of: of["loss_last"] < 0.6 * of["loss_first"] and of["overlap_last"] > of["overlap_first"],
    {"width": 9},
    "width 8 before, 9 now",
    "locret(budget=16, chunk=16, local=4)",
    "heads",
    "heads",
    {"width": 8, "layers": 2},
    "locret",
)
CASES = {
    "heads": HEADS,
    "heads-bf16": replace(HEADS, recipe=replace(HEADS.recipe, bf16=True)),
    "gates": Case(
        train_gates,
        GatesRecipe(sink=2, recent=6, **MEASURED),
        keys(7, 1),
        "head_gates.json",
        {"steps": 40, "learning_rate": 0.1, "penalty": 20.0},
        lambda of: of["loss_last"] < of["loss_first"] and of["gate_last"] < 0.9 * of["gate_first"],
        {"recent": 7},
        "recent 6 before, 7 now",
        "duo(sink=2, recent=8, chunk=16)",
        "gates",
        None,
        {},
        "duo(sink=2, recent=6)",
    ),
    "convolutions": Case(
        train_convolutions,
        ConvolutionsRecipe(
            budget=16, sums=8, chunk=20, kernel=5, length=120, accumulate=2, learning_rate=0.02, **OFTEN
        ),
        [*keys(4, 5), {"prompt": "Short.", "answer": "Yes."}],  # the last too short to be compressed
        "convolutions.safetensors",
        {"steps": 25, "accumulate": 4},
        lambda of: of["loss_last"] < of["loss_first"] - 0.02,
        {"sums": 7},
        "sums 8 before, 7 now",
        "lococo(budget=16, chunk=20)",
        "convolutions",
        "convolutions",
        {"sums": 8, "kernel": 5},
        "lococo(budget=16, chunk=20)",
    ),
    "indexers": Case(
        train_indexers,
        IndexersRecipe(heads=4, dim=8, learning_rate=1e-2, length=100, rows=40, **MEASURED),
        keys(5, 4),
        "indexers.safetensors",
        {"steps": 60},
        lambda of: of["loss_last"] < 0.8 * of["loss_first"] and of["mass_last"] > of["mass_first"],
        {"rows": 41},
        "rows 40 before, 41 now",
        "indexer(budget=16, recent=4)",
        "trained",
        "indexers",
        {"heads": 4, "dim": 8},
        "indexer",
    ),
}


@pytest.fixture(params=[name for name in CASES if name != "heads-bf16"])
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def data(case: Case, tmp_path: Path) -> Path:
    return write(tmp_path / "data.jsonl", case.rows)


def test_a_run_learns_and_leaves_the_model_alone(case: Case, data: Path, tmp_path: Path) -> None:
    llm, before = tiny_llm(), tiny_model().state_dict()
    steps: list[Progress] = []
    recipe = replace(case.recipe, **case.lesson)
    report = case.train(llm, data, tmp_path / "out", recipe, progress=steps.append)
    result = report.record["result"]
    assert case.learnt(result), result
    assert [each.step for each in steps] == list(range(1, recipe.steps + 1))
    of_texts = case.train is train_convolutions
    items = (read_texts(llm, data, recipe) if of_texts else read_samples(llm, data)).items
    assert report.record["data"]["samples"] == len(items)
    assert report.record["data"]["too_short"] == len(case.rows) - len(items) == of_texts
    order = islice(sample_order(len(items), 0), recipe.steps * (recipe.accumulate if of_texts else 1))
    assert steps[-1].tokens == result["tokens"] == sum(len(items[index].ids) for index in order)
    assert report.files == case.files
    same(dict(llm.model.state_dict()), dict(before))
    assert all(parameter.requires_grad and parameter.grad is None for parameter in llm.model.parameters())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES, indirect=False)
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(case: Case, data: Path, tmp_path: Path) -> None:
    whole, parts, recipe = tmp_path / "whole", tmp_path / "parts", replace(case.recipe, steps=10)
    held_out = case.held_out(data)
    expected = case.train(tiny_llm(), data, whole, recipe, **held_out).record["result"]
    with pytest.raises(KeyboardInterrupt):  # one step behind the checkpoint
        case.train(tiny_llm(), data, parts, recipe, progress=stop_at(7), **held_out)
    assert [path.name for path in parts.glob("checkpoint-*")] == ["checkpoint-6"]
    (parts / "checkpoint-8").mkdir()  # what an interrupted save leaves
    resumed = case.train(tiny_llm(), data, parts, recipe, resume=True, **held_out)
    same(case.weights(whole), case.weights(parts))
    measured = {"seconds": 0, "peak_bytes": 0}  # of each run its own
    assert resumed.record["result"] | measured == expected | measured
    assert log(parts) == log(whole)
    assert [line["step"] for line in log(parts)] == ([3, 4, 6, 8, 9, 10, 10] if case.measured else [4, 8, 10])
    assert resumed.files == case.files


def test_checkpoints_come_by_the_clock_too(case: Case, data: Path, tmp_path: Path) -> None:
    out, recipe = tmp_path / "out", replace(case.recipe, save_every=1000, save_minutes=1e-9)
    with pytest.raises(KeyboardInterrupt):
        case.train(tiny_llm(), data, out, recipe, progress=stop_at(3))
    assert [path.name for path in out.glob("checkpoint-*")] == ["checkpoint-3"]
    case.train(tiny_llm(), data, out, case.recipe, resume=True)  # how often may change


def test_another_run_is_not_resumed(case: Case, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        case.train(tiny_llm(), data, out, case.recipe, progress=stop_at(3))

    def train(data: Path = data, out: Path = out, **changed: Any) -> Report:
        return case.train(tiny_llm(), data, out, replace(case.recipe, **changed), resume=True)

    with pytest.raises(InputError, match=case.why):
        train(**case.other)
    with pytest.raises(InputError, match="not empty; resume the run in it"):
        case.train(tiny_llm(), data, out, case.recipe)
    with pytest.raises(InputError, match="prefill_chunk "):  # rounded otherwise
        case.train(tiny_llm(prefill_chunk=5), data, out, case.recipe, resume=True)
    with pytest.raises(InputError, match="data "):
        train(write(tmp_path / "other.jsonl", keys(1, 9)))
    [state] = out.glob("checkpoint-*/state.safetensors")
    whole = state.read_bytes()
    state.write_bytes(pickle.dumps(whole))  # what is no safetensors is not unpickled
    with pytest.raises(ModelError, match=r"checkpoint-\d is damaged .*; remove it, or start again"):
        train()
    state.write_bytes(whole)
    train()
    with pytest.raises(InputError, match="is finished"):
        train()
    with pytest.raises(InputError, match="no run to resume"):
        train(out=tmp_path / "new")


def test_what_is_trained_says_what_it_is_is_used_and_is_refused_elsewhere(
    case: Case, data: Path, tmp_path: Path
) -> None:
    base, out = save_tiny_model(tmp_path / "some-model"), tmp_path / "out"
    case.train(LLM(base), data, out, case.recipe)
    record = json.loads((out / "winnow.json").read_text(encoding="utf-8"))
    config = json.loads((out / (CONFIG if CONFIG in case.files else case.made)).read_text(encoding="utf-8"))
    assert (config["base"], config["fingerprint"]) == ("some-model", record["base"]["fingerprint"])
    assert case.config.items() <= config.items()
    assert {name: config[name] for name in ("recipe", "data", "result")} == {
        name: record[name] for name in ("recipe", "data", "result")
    }
    assert record["plan"] == case.written
    assert (record["data"]["file"], record["data"]["too_long"]) == ("data.jsonl", 0)
    for path in out.iterdir():
        assert str(tmp_path) not in path.read_bytes().decode("utf-8", errors="replace"), path.name

    prompt, params = "The key is 3. " * 6, SamplingParams(max_tokens=3)
    plan = f"{case.plan[:-1]}, {case.argument}='{out}')"
    [named] = LLM(base).generate(prompt, params, plan=plan)
    assert named.stats.units_read < named.stats.units_full
    other = r"trained on some-model(, and this model, LlamaForCausalLM, has other weights|: they are of 4 KV heads)"
    with pytest.raises(ModelError, match=other):
        LLM(small_model()).check([[5] * 9], plan=plan)
    if case.of_llm is None:
        return
    [given] = LLM(base, **{case.of_llm: out}).generate(prompt, params, plan=case.plan)
    assert given.token_ids == named.token_ids
    card = (out / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nbase_model: some-model\n")
    assert f'LLM("some-model", {case.of_llm}="DIRECTORY")' in card
    with pytest.raises(ModelError, match="trained on some-model, and this model, LlamaForCausalLM, has other weights"):
        LLM(small_model(), **{case.of_llm: out})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "holds no conversation"),
        ([{"prompt": "c" * 40000, "answer": "d"}], "all 1 conversations are longer than 32768 tokens"),
        ([{"prompt": "a"}], "data.jsonl, line 1: an object with prompt"),
    ],
)
def test_data_that_cannot_be_used_is_refused_before_any_work(
    case: Case, rows: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "data.jsonl", rows)
    with pytest.raises(InputError, match=message):
        case.train(tiny_llm(), path, tmp_path / "out", case.recipe)
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_tokenizer_is_refused(case: Case, data: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no tokenizer"):
        case.train(LLM(tiny_model()), data, tmp_path / "out", case.recipe)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        (HeadsRecipe, {"width": 0}, "width=0 must be at least 1"),
        (HeadsRecipe, {"length": 1}, "length=1 must be at least 2"),
        (HeadsRecipe, {"smoothing": -1}, "smoothing=-1 must be at least 0"),
        (HeadsRecipe, {"warmup": 1.0}, "warmup=1.0 is a share"),
        (HeadsRecipe, {"steps": 1.5}, "steps=1.5 must be a whole number"),
        (GatesRecipe, {"penalty": -1}, "penalty=-1 must be at least 0"),
        (GatesRecipe, {"recent": 0}, "recent=0 must be at least 1"),
        (ConvolutionsRecipe, {"sums": 16, "budget": 16}, "sums=16 must be below budget=16"),
        (ConvolutionsRecipe, {"kernel": 4}, "kernel=4 must be odd"),
        (IndexersRecipe, {"heads": 0}, "heads=0 must be at least 1"),
        (Recipe, {"epochs": 0}, "epochs"),
        (Recipe, {"steps": 0}, "steps"),
        (Recipe, {"learning_rate": -1.0}, "learning_rate"),
        (Recipe, {"seed": -1}, "seed=-1 must be from 0"),
        (Recipe, {"warmup": 1.0}, "warmup"),
        (Recipe, {"schedule": "sine"}, "schedule"),
        (Recipe, {"batch": 1.5}, "batch"),
        *[
            (recipe, settings, message)
            for recipe in (HeadsRecipe, GatesRecipe, ConvolutionsRecipe, IndexersRecipe)
            for settings, message in (
                ({"steps": 1}, "steps=1 must be at least 2"),
                ({"learning_rate": 0}, "learning_rate=0 must be above 0"),
                ({"seed": -1}, "seed=-1 must be from 0"),
            )
        ],
    ],
)
def test_a_recipe_refuses_nonsense(recipe: type, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        recipe(**settings)
