"""How the benchmarks of layers look."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from benchmarks.depth import Cell
from benchmarks.sparsity import Profile
from benchmarks.sweep import SweepRow
from benchmarks.usage import Stage
from winnow.cli.terminal import new_table

MIB = 2**20
PLAN_COLUMNS = 17  # least width of the column of plans
STEPS = 10  # at most so many columns of steps
SWEEP: dict[str, Callable[[SweepRow], str]] = {
    "score\n%": lambda row: f"{100 * row.score:.0f}",
    "95 %": lambda row: f"{100 * row.low:.0f}-{100 * row.high:.0f}",
    "of\nfull\n%": lambda row: "-" if row.relative_score is None else f"{100 * row.relative_score:.1f}",
    "TTFT\nx": lambda row: f"{row.ttft_speedup:.2f}",
    "gene-\nration\nx": lambda row: f"{row.generation_speedup:.2f}",
    "rows\n%": lambda row: f"{100 * row.rows_share:.1f}",
    "FLOPs\n%": lambda row: f"{100 * row.flops_share:.1f}",
    "used\n%": lambda row: f"{100 * row.prompt_computed:.1f}",
    "used,\nlast\nlayer\n%": lambda row: f"{100 * row.prompt_computed_last:.1f}",
    "revived\nrows": lambda row: f"{row.revived_rows:,.0f}",
    "beside\nMiB": lambda row: f"{row.aux_bytes / MIB:.2f}",
    "peak\nbytes\nx": lambda row: f"{row.peak_ratio:.2f}",
}
SWEEP_CAPTION = (
    "TTFT, generation: full attention's time over the plan's, medians; rows, FLOPs: of prefill, % of full attention's; "
    "used: prompt tokens computed by the end, mean over layers; beside: the most bytes held beside units; peak "
    "bytes: the most held at once, of full attention's"
)


def plan_table(
    rows: Sequence[Any], columns: Mapping[str, Callable[[Any], str]], title: str, caption: str, first: str = "plan"
) -> Table:
    """A row per plan. rows: with a `plan` each, or what `first` names; columns: by heading, what is shown of a row."""
    table = new_table(title, caption)
    table.add_column(first, overflow="fold", min_width=PLAN_COLUMNS)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(getattr(row, first), *(show(row) for show in columns.values()))
    return table


def length_table(
    rows: Sequence[Any], columns: Mapping[str, Callable[[Any], str]], title: str, caption: str, first: str
) -> Table:
    """The same in sections, one for each `length` of the rows. first: what stands above the lengths."""
    table = new_table(title, caption)
    table.add_column(first, justify="right")
    table.add_column("plan", overflow="fold", min_width=PLAN_COLUMNS)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        ends = after is not None and after.length != row.length
        table.add_row(f"{row.length:,}", row.plan, *(show(row) for show in columns.values()), end_section=ends)
    return table


def sweep_tables(rows: Sequence[SweepRow], model: str) -> RenderableType:
    """A table per length, a section per task, a row per plan."""
    tables = []
    for length in dict.fromkeys(row.length for row in rows):
        here = [row for row in rows if row.length == length]
        table = new_table(f"{model}, {length:,} prompt tokens", SWEEP_CAPTION)
        table.add_column("task")
        table.add_column("plan", overflow="fold", min_width=PLAN_COLUMNS)
        for heading in (*SWEEP, "n"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row, after in zip(here, [*here[1:], None], strict=True):
            figures = [show(row) for show in SWEEP.values()]
            ends = after is not None and after.task != row.task
            table.add_row(row.task, row.plan, *figures, f"{row.examples}", end_section=ends)
        tables.append(table)
    return Group(*tables) if tables else "no example was answered under every plan"


def depth_table(cells: Sequence[Cell], title: str) -> RenderableType:
    """A row per pruning layer, a column per keep ratio."""
    if not cells:
        return "no example was answered under every plan"
    full, *pruned = cells
    table = new_table(None)
    keeps = sorted({cell.keep for cell in pruned if cell.keep is not None})
    for heading in ("layer", *(f"{100 * keep:g}" for keep in keeps)):
        table.add_column(heading, justify="right")
    score = {(cell.layer, cell.keep): f"{100 * cell.score:.1f}" for cell in pruned}
    for layer in sorted({cell.layer for cell in pruned if cell.layer is not None}):
        table.add_row(str(layer), *(score[layer, keep] for keep in keeps))
    caption = f"full attention {100 * full.score:.1f}; {full.examples} examples; columns: share of the prompt kept, %"
    return _framed(title, table, caption)


def _framed(title: str, table: Table, caption: str) -> RenderableType:
    """A table between its title and caption, which may be wider than it."""
    return Group(title, "", table, caption)


def layers_of(stage: Stage) -> str:
    return f"layer {stage.first}" if stage.first == stage.last else f"layers {stage.first}-{stage.last}"


def usage_table(stages: Sequence[Stage], running: Sequence[int], title: str) -> RenderableType:
    """A row per stage; columns for prefill, then steps further and further apart, then the last."""
    if not stages:
        return "no answer was finished"
    last = len(running) - 1
    steps = [0, *(2**power for power in range(STEPS - 2) if 2**power < last), *([last] if last else [])]
    table = new_table(None)
    for heading in ("", *map(str, steps)):
        table.add_column(heading, justify="right")
    for stage in stages:
        table.add_row(layers_of(stage), *(f"{100 * stage.share[step]:.1f}" for step in steps))
    table.add_row("running", *(str(running[step]) for step in steps))
    caption = "by decode step, 0 is prefill; running: answers that took the step, others keep their share"
    return _framed(title, table, caption)


def sparsity_table(profiles: Sequence[Profile], title: str) -> RenderableType:
    """A row per layer, then their mean."""
    if not profiles:
        return "no prompt was finished"
    table = new_table(None)
    for heading in ("layer", *(f"hold\n{100 * float(mass):g} %" for mass in profiles[0].holds), "below\n%"):
        table.add_column(heading, justify="right")
    for profile in profiles:
        holds = [f"{100 * share:.2f}" for share in profile.holds.values()]
        name = "mean" if profile.layer is None else str(profile.layer)
        table.add_row(name, *holds, f"{100 * profile.below_uniform:.1f}")
    caption = "% of the prompt's tokens, the most attended first; below: tokens that get less than an equal part"
    return _framed(title, table, caption)


def schedule_table(document: dict[str, Any]) -> RenderableType:
    """The plan on a line of its own, then a row per layer."""
    table = new_table(None)
    for heading in ("layer", "rows", "rows\n%", "FLOPs\n%"):
        table.add_column(heading, justify="right")
    for each in document["layers"]:
        shares = (f"{100 * each[name]:.1f}" for name in ("rows_share", "flops_share"))
        table.add_row(str(each["layer"]), f"{each['rows']:,}", *shares)
    what = f"{document['model']}, prefill of {document['length']:,} tokens, against full attention"
    caption = f"{what}: {100 * document['rows']:.1f} % of the rows, {100 * document['flops']:.1f} % of the FLOPs"
    return _framed(document["plan"], table, caption)
