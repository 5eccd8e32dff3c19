"""`winnow eval --tasks`: tasks of lm_eval under plans, side by side."""

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table

from winnow.bench.compare import with_full
from winnow.cli.inputs import refuse
from winnow.cli.terminal import Meter, interruptible, new_table
from winnow.errors import InputError, MissingExtraError
from winnow.plan import Plan
from winnow.runtime.llm import LLM

if TYPE_CHECKING:
    from winnow.bench.harness_run import HarnessRun, Score

MIB = 2**20

Names = Annotated[
    str | None,
    typer.Option("--tasks", metavar="NAMES", help="Instead: lm_eval's tasks, groups or task files, by commas."),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Of --tasks: documents of each task.  [default: all]")]
NumFewshot = Annotated[
    int | None, typer.Option(min=0, help="Of --tasks: solved examples first.  [default: what the task says]")
]
IncludePath = Annotated[Path | None, typer.Option(metavar="DIR", help="Of --tasks: task files of your own.")]
Metadata = Annotated[
    str | None, typer.Option(metavar="JSON", help='Of --tasks: for tasks that make data, {"max_seq_lengths": [4096]}.')
]
ChatTemplate = Annotated[
    bool | None, typer.Option("--apply-chat-template", help="Of --tasks: ask in the model's chat template.")
]


@dataclass(frozen=True)
class Asked:
    """What `--tasks` and the options about it say."""

    names: list[str]
    limit: int | None
    num_fewshot: int | None
    include_path: Path | None
    metadata: dict[str, Any]
    apply_chat_template: bool


def read_options(
    names: str | None,
    limit: int | None,
    num_fewshot: int | None,
    include_path: Path | None,
    metadata: str | None,
    apply_chat_template: bool | None,
) -> Asked | None:
    """The options, checked before a model is loaded; None without --tasks.

    Raises MissingExtraError without lm_eval, InputError where an option cannot be used.
    """
    if names is None:
        about: dict[str, object] = {"--limit": limit, "--num-fewshot": num_fewshot, "--include-path": include_path}
        refuse("about --tasks only", {**about, "--metadata": metadata, "--apply-chat-template": apply_chat_template})
        return None
    if find_spec("lm_eval") is None:
        raise MissingExtraError("--tasks needs lm_eval; pip install 'winnow-llm[eval]'")
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise InputError(f"--tasks {names!r} names no task; `lm_eval ls tasks` lists them")
    if include_path is not None and not include_path.is_dir():
        raise InputError(f"--include-path {include_path} is not a directory; give the one that holds the task files")
    try:
        told = json.loads(metadata or "{}")
    except json.JSONDecodeError as error:
        raise InputError(f"--metadata is not JSON: {error}") from error
    if not isinstance(told, dict):
        raise InputError(f'--metadata {metadata} must be a JSON object, such as {{"max_seq_lengths": [4096]}}')
    return Asked(wanted, limit, num_fewshot, include_path, told, bool(apply_chat_template))


def run_harness(
    llm: LLM, plans: Sequence[Plan], asked: Asked, seed: int
) -> tuple[bool, dict[str, Any], RenderableType]:
    """Full attention and `plans` on lm_eval's tasks: whether all ended, the figures for JSON, and what to show."""
    import datasets  # comes with lm_eval

    from winnow.bench.harness_run import load_tasks, run_tasks, scores

    datasets.disable_progress_bars()
    for chatty in ("lm_eval", "datasets", "huggingface_hub"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    metadata = {"pretrained": llm.model.name_or_path, **asked.metadata}
    tasks = load_tasks(asked.names, include_path=asked.include_path, metadata=metadata)
    chosen = with_full(plans)
    runs: list[HarnessRun] = []
    with Meter("evaluating", tasks.documents(asked.limit) * len(chosen)) as meter, interruptible():
        for run in run_tasks(
            llm,
            chosen,
            tasks,
            limit=asked.limit,
            num_fewshot=asked.num_fewshot,
            apply_chat_template=asked.apply_chat_template,
            seed=seed,
            progress=meter.advance,
        ):
            runs.append(run)
            meter.note(f"{len(runs)} of {len(chosen)} plans")
    if runs and (lost := runs[0].costs.truncated):
        what = f"{lost} of {runs[0].costs.requests} contexts were too long for the model and lost their beginning"
        print(f"warning: {what}", file=sys.stderr)
    found = scores(runs)
    figures = {"scores": [score.to_dict() for score in found], "runs": [run.to_dict() for run in runs]}
    return len(runs) == len(chosen), figures, Group(score_table(found), "", cost_table(runs))


def score_table(found: Sequence["Score"]) -> Table:
    """A row per task, metric and plan."""
    table = new_table(None, "±: lm_eval's standard error; of full: the value over full attention's")
    table.add_column("task")
    table.add_column("metric")
    table.add_column("plan", overflow="fold")
    for heading in ("value", "±", "of full"):
        table.add_column(heading, justify="right")
    before = None
    for each in found:
        new = (each.task, each.metric) != before
        before = each.task, each.metric
        table.add_row(
            *(before if new else ("", "")),
            each.plan,
            f"{each.value:.4g}",
            "-" if each.stderr is None else f"{each.stderr:.2g}",
            "-" if each.of_full is None else f"{each.of_full:.3f}x",
        )
    return table


def cost_table(runs: Sequence["HarnessRun"]) -> Table:
    """A row per plan: what all requests together cost."""
    table = new_table(
        None,
        "over all requests; rows and units read: of what full attention takes for the same; units held: at the end, "
        "summed; memory: the most of one, with all that the plan holds beside units",
    )
    table.add_column("plan", overflow="fold")
    for heading in ("requests", "rows\n%", "units read\n%", "units held\nMiB", "memory\nMiB", "s"):
        table.add_column(heading, justify="right")
    for run in runs:
        costs = run.costs
        table.add_row(
            run.plan,
            f"{costs.requests:,}",
            _share(costs.rows_computed, costs.rows_full),
            _share(costs.units_read, costs.units_full),
            f"{costs.cache_bytes / MIB:.3g}",
            f"{costs.total_bytes / MIB:.3g}",
            f"{run.seconds:.1f}",
        )
    return table


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "-"
