"""`winnow eval harness`: tasks of lm_eval under plans, side by side."""

import json
import logging
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table

from winnow.cli.commands.evaluate import Harness
from winnow.cli.deliver import Record, deliver
from winnow.cli.inputs import check_outputs, parse_plans
from winnow.cli.terminal import Meter, interruptible, new_table, say
from winnow.errors import InputError, MissingExtraError
from winnow.evaluation.compare import with_full
from winnow.evaluation.evaluate import environment

if TYPE_CHECKING:
    from winnow.evaluation.harness_run import HarnessRun, Score

MIB = 2**20


def harness(options: Harness) -> int:
    """Full attention and the plans on lm_eval's tasks; returns the exit code."""
    plans = parse_plans(options.plan)
    check_outputs(options.out, None)
    told = _check(options)
    llm = options.load()

    import datasets  # comes with lm_eval

    from winnow.evaluation.harness_run import load_tasks, run_tasks, scores

    datasets.disable_progress_bars()
    for chatty in ("lm_eval", "datasets", "huggingface_hub"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    metadata = {"pretrained": llm.model.name_or_path, **told}
    tasks = load_tasks(_names(options), include_path=options.include_path, metadata=metadata)
    chosen = with_full(plans or [llm.plan])
    runs: list[HarnessRun] = []
    with Meter("evaluating", tasks.documents(options.limit) * len(chosen)) as meter, interruptible():
        for run in run_tasks(
            llm,
            chosen,
            tasks,
            limit=options.limit,
            num_fewshot=options.num_fewshot,
            apply_chat_template=options.apply_chat_template,
            seed=options.seed,
            progress=meter.advance,
        ):
            runs.append(run)
            meter.note(f"{len(runs)} of {len(chosen)} plans")
    if runs and (lost := runs[0].costs.truncated):
        what = f"{lost} of {runs[0].costs.requests} contexts were too long for the model and lost their beginning"
        say(f"warning: {what}")
    found = scores(runs)
    figures = {"scores": [score.to_dict() for score in found], "runs": [run.to_dict() for run in runs]}
    about = {**environment(llm, options.model_name), "adapter": options.adapter, "seed": options.seed}
    shown = Group(score_table(found), "", cost_table(runs))
    return deliver(Record("eval harness", figures, shown, None, len(runs) == len(chosen), about), options)


def _names(options: Harness) -> list[str]:
    return [name.strip() for given in options.names for name in given.split(",") if name.strip()]


def _check(options: Harness) -> dict[str, Any]:
    """What --metadata says. Raises MissingExtraError without lm_eval, InputError where an option cannot be used."""
    if find_spec("lm_eval") is None:
        raise MissingExtraError("winnow eval harness needs lm_eval; pip install 'winnow-llm[eval]'")
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
