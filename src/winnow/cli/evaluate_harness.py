"""`winnow eval harness`: tasks of lm_eval under plans, side by side."""

import json
import logging
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table

from winnow.cli.commands.evaluate import Harness
from winnow.cli.deliver import Record, deliver
from winnow.cli.inputs import parse_plans
from winnow.cli.tables import MIB, Column, table_of
from winnow.cli.terminal import collect, say
from winnow.errors import InputError, MissingExtraError
from winnow.evaluation.compare import with_full
from winnow.evaluation.evaluate import environment
from winnow.models.files import os_errors

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from winnow.evaluation.harness_run import HarnessRun, Score

SCORES: "list[Column[Score]]" = [
    Column("value", lambda each: each.value, ".4g"),
    Column("±", lambda each: each.stderr, ".2g"),
    Column("of full", lambda each: None if each.of_full is None else f"{each.of_full:.3f}x"),
]
COSTS: "list[Column[HarnessRun]]" = [
    Column("requests", lambda run: run.costs.requests, ","),
    Column("rows\n%", lambda run: _share(run.costs.rows_computed, run.costs.rows_full), ".1f"),
    Column("units read\n%", lambda run: _share(run.costs.units_read, run.costs.units_full), ".1f"),
    Column("units held\nMiB", lambda run: run.costs.cache_bytes / MIB, ".3g"),
    Column("memory\nMiB", lambda run: run.costs.total_bytes / MIB, ".3g"),
    Column("s", lambda run: run.seconds, ".1f"),
]


def harness(options: Harness) -> int:
    """Full attention and the plans on lm_eval's tasks; returns the exit code."""
    plans = parse_plans(options.plan)
    told = _check(options)
    llm = options.load()

    import datasets  # comes with lm_eval

    from winnow.evaluation.harness_run import load_tasks, run_tasks, scores

    datasets.disable_progress_bars()
    for chatty in ("lm_eval", "datasets", "huggingface_hub"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    with TemporaryDirectory(prefix="winnow-") as directory:
        saved = {} if llm.tokenizer is None else {"pretrained": without_code(llm.tokenizer, Path(directory))}
        tasks = load_tasks(_names(options), include_path=options.include_path, metadata={**saved, **told})
    named = {"pretrained": llm.model.config.name_or_path, **told}  # which stays, where the saved one is gone
    for task in tasks.leaves.values():
        task.config.metadata = {**(task.config.metadata or {}), **named}
    chosen = with_full(plans or [llm.plan])
    ask = partial(
        run_tasks,
        llm,
        chosen,
        tasks,
        limit=options.limit,
        num_fewshot=options.num_fewshot,
        apply_chat_template=options.apply_chat_template,
        seed=options.seed,
    )
    runs = collect("evaluating", tasks.documents(options.limit) * len(chosen), f"{len(chosen)} plans", ask)
    if runs and (lost := runs[0].costs.truncated):
        what = f"{lost} of {runs[0].costs.requests} contexts were too long for the model and lost their beginning"
        say(f"warning: {what}")
    found = scores(runs)
    figures = {"scores": [score.to_dict() for score in found], "runs": [run.to_dict() for run in runs]}
    about = {**environment(llm, options.model_name), "adapter": options.adapter, "seed": options.seed}
    shown = Group(score_table(found), "", cost_table(runs))
    return deliver(Record("eval harness", figures, shown, None, len(runs) == len(chosen), about), options)


def without_code(tokenizer: "PreTrainedTokenizerBase", directory: Path) -> str:
    """Save it for tasks that load a tokenizer by themselves, a GGUF file's too; returns where.

    They run what code a model's directory has for it, and Winnow never does: no such code is named there.
    """
    with os_errors(directory):
        tokenizer.save_pretrained(directory)
    file = directory / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config.pop("auto_map", None)
    file.write_text(json.dumps(config), encoding="utf-8")
    return str(directory)


def _names(options: Harness) -> list[str]:
    return [name.strip() for given in options.names for name in given.split(",") if name.strip()]


def _check(options: Harness) -> dict[str, Any]:
    """What --metadata says. Raises MissingExtraError without lm_eval, InputError where an option cannot be used."""
    if find_spec("lm_eval") is None:
        raise MissingExtraError("winnow eval harness needs lm_eval; install winnow with its extra 'eval'")
    if not _names(options):
        raise InputError(f"{' '.join(options.names)!r} names no task; `lm_eval ls tasks` lists them")
    if options.include_path is not None and not options.include_path.is_dir():
        raise InputError(
            f"--include-path {options.include_path} is not a directory; give the one that holds the task files"
        )
    try:
        told = json.loads(options.metadata or "{}")
    except json.JSONDecodeError as error:
        raise InputError(f"--metadata is not JSON: {error}") from error
    if not isinstance(told, dict):
        raise InputError(f'--metadata {options.metadata} must be a JSON object, such as {{"max_seq_lengths": [4096]}}')
    return told


def score_table(found: Sequence["Score"]) -> Table:
    """A row per task, metric and plan; what is as in the row above is left out."""
    firsts = {(each.task, each.metric): each for each in reversed(found)}

    def once(name: str) -> Callable[["Score"], str]:
        return lambda each: getattr(each, name) if firsts[each.task, each.metric] is each else ""

    names = {"task": once("task"), "metric": once("metric"), "plan": lambda each: each.plan}
    return table_of(found, names, SCORES, note="±: lm_eval's standard error")


def cost_table(runs: Sequence["HarnessRun"]) -> Table:
    """A row per plan: what all requests together cost."""
    note = "over all requests; rows and units read: of full attention's for the same; units held: at the end, summed"
    return table_of(runs, {"plan": lambda run: run.plan}, COSTS, note=note)


def _share(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None
