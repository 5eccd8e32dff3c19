"""lm_eval's tasks under several plans: find and load them, run each plan on the same requests, read off the scores."""

import difflib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.api import task as api_task
from lm_eval.api.group import Group
from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager

from winnow.errors import InputError
from winnow.evaluation.evaluate import silent
from winnow.evaluation.harness import Costs, PlannedLM, sampling
from winnow.plan import Plan
from winnow.runtime.llm import LLM

BOOTSTRAPS = 1000  # resamplings for the standard errors that have no formula; lm_eval's 100,000 take minutes
KEPT = ("results", "groups", "config", "configs", "versions", "n-shot", "n-samples", "higher_is_better")


@dataclass(frozen=True)
class HarnessRun:
    """All tasks under one plan. report: what lm_eval says of them, ready for JSON."""

    plan: str
    seconds: float
    costs: Costs
    report: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {"plan": self.plan, "seconds": self.seconds, "costs": self.costs.to_dict(), **self.report}


@dataclass(frozen=True)
class Score:
    """One metric of one task or group under one plan.

    metric: with the filter of the answers, where there is one. stderr: None where lm_eval gives none. of_full: value
    over full attention's, None where that is 0 or has not been measured.
    """

    task: str
    metric: str
    plan: str
    value: float
    stderr: float | None
    of_full: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Loaded:
    """Tasks and groups with their data. leaves: every task, those of the groups included; manager: who knows them."""

    manager: TaskManager
    built: list[Task | Group]
    leaves: dict[str, Task]

    def documents(self, limit: int | None) -> int:
        """How many documents are asked about."""
        sizes = [len(task.eval_docs) for task in self.leaves.values()]
        return sum(sizes if limit is None else [min(limit, size) for size in sizes])


def load_tasks(
    names: Sequence[str], *, include_path: Path | None = None, metadata: Mapping[str, Any] | None = None
) -> Loaded:
    """lm_eval's tasks, groups, tags or YAML files by name, with their data.

    include_path: a directory of task files of your own. metadata: passed to tasks that make their data, such as ruler.
    Raises InputError where a name is not known, a task needs more than text, or its data cannot be loaded.
    """
    manager = _manager(names, include_path, dict(metadata or {}))
    known = manager.all_tasks
    for name in names:
        if name not in known and not Path(name).is_file():
            close = difflib.get_close_matches(name, known, n=3)
            hint = f"; did you mean {' or '.join(close)}?" if close else "; `lm_eval ls tasks` lists them"
            raise InputError(f"lm_eval has no task {name!r}{hint}")
    built: list[Task | Group] = []
    for name in dict.fromkeys(names):
        try:
            loaded = manager.load([name])
        except Exception as error:  # tasks run code of their own, which fails in its own ways
            reason = str(error).strip() or type(error).__name__
            raise InputError(f"lm_eval's task {name} or its data cannot be loaded: {reason}") from error
        built += [loaded["groups"][name]] if name in loaded["groups"] else loaded["tasks"].values()
    try:
        leaves = manager.load(built)["tasks"]
    except ValueError as error:
        raise InputError(f"{error}; name it once") from error
    for name, task in leaves.items():
        for flag, what in {"UNSAFE_CODE": "runs code that a model wrote", "MULTIMODAL": "shows more than text"}.items():
            if getattr(task, flag, False):
                raise InputError(f"lm_eval's task {name} {what}, which is not supported; leave it out")
    return Loaded(manager, built, leaves)


def run_tasks(
    llm: LLM,
    plans: Sequence[str | Plan],
    tasks: Loaded,
    *,
    limit: int | None = None,
    num_fewshot: int | None = None,
    apply_chat_template: bool = False,
    seed: int = 0,
    progress: Callable[[int], None] = silent,
) -> Iterator[HarnessRun]:
    """One `lm_eval.simple_evaluate` per plan, on the same requests; yields each plan's run as it ends.

    limit: documents of each task; num_fewshot: solved examples before a question, None: as the task says. seed: of
    sampled answers; lm_eval's own seeds keep its defaults. progress: called with the number of documents just met.
    Raises InputError or PlanError, before any work, where a plan does not fit the model, or a task asks for rolling
    likelihoods under a plan or for generation keywords that are not supported.
    """
    chosen = [Plan.parse(plan) for plan in plans]
    for name, task in tasks.leaves.items():
        sampling(task.config.generation_kwargs or {} if task.OUTPUT_TYPE == "generate_until" else {}, seed)
        if task.OUTPUT_TYPE == "loglikelihood_rolling" and not all(plan.is_full for plan in chosen):
            raise InputError(
                f"task {name} asks for the likelihood of whole texts, which have no prompt, so it is for the full plan "
                "alone; use winnow eval text FILE --plan PLAN for the perplexity of a plan"
            )
    models = [PlannedLM(llm, plan, seed=seed, progress=progress) for plan in chosen]
    return (_run(model, tasks, limit, num_fewshot, apply_chat_template) for model in models)


def scores(runs: Sequence[HarnessRun]) -> list[Score]:
    """Every metric of every task under every plan; the plans of one metric stand together."""
    found = [_values(run.report["results"]) for run in runs]
    full = next((values for run, values in zip(runs, found, strict=True) if run.plan == "full"), {})
    rows = []
    for key in dict.fromkeys(key for values in found for key in values):
        for run, values in zip(runs, found, strict=True):
            if key in values:
                value, stderr = values[key]
                base = full[key][0] if key in full else 0.0
                rows.append(Score(*key, run.plan, value, stderr, value / base if base else None))
    return rows


def _values(results: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str], tuple[float, float | None]]:
    """(task, metric) -> value and standard error; lm_eval's keys are "metric,filter" and "metric_stderr,filter"."""
    found = {}
    for task, entry in results.items():
        for key, value in entry.items():
            metric, _, filtered = key.partition(",")
            if not filtered or metric.endswith("_stderr") or not isinstance(value, (int, float)):
                continue
            stderr = entry.get(f"{metric}_stderr,{filtered}")
            name = metric if filtered == "none" else f"{metric} ({filtered})"
            found[task, name] = float(value), stderr if isinstance(stderr, float) else None
    return found


def _run(
    model: PlannedLM, tasks: Loaded, limit: int | None, num_fewshot: int | None, apply_chat_template: bool
) -> HarnessRun:
    started = time.perf_counter()
    with _quiet():
        report = lm_eval.simple_evaluate(
            model=model,
            tasks=tasks.built,
            task_manager=tasks.manager,
            limit=limit,
            num_fewshot=num_fewshot,
            apply_chat_template=apply_chat_template,
            bootstrap_iters=BOOTSTRAPS,
            log_samples=False,
        )
    kept = {name: _plain(report[name]) for name in KEPT if name in report}
    return HarnessRun(str(model.plan), time.perf_counter() - started, model.costs, kept)


def _manager(names: Sequence[str], include_path: Path | None, metadata: dict[str, Any]) -> TaskManager:
    """One that knows all `names`. lm_eval's own index takes seconds to build and is left out where it is not needed."""
    if include_path is not None:
        own = TaskManager(include_path=str(include_path), include_defaults=False, metadata=metadata)
        if set(names) <= set(own.all_subtasks):
            return own
    return TaskManager(include_path=None if include_path is None else str(include_path), metadata=metadata)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without lm_eval's bar per task, which it has no option for, and without what it prints among our output."""
    bar = api_task.tqdm
    api_task.tqdm = partial(bar, disable=True)
    try:
        with redirect_stdout(StringIO()):
            yield
    finally:
        api_task.tqdm = bar


def _plain(value: Any) -> Any:
    """As JSON can hold it: a figure that is not finite is None, an object is its text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
