"""How a search looks: the frontier, the finalists, the plan to use or what comes nearest; and the plan as a file."""

from datetime import date
from pathlib import Path

from rich.table import Table

import winnow
from winnow.cli.compare_view import SCORE, TIMES
from winnow.cli.tables import Column, table_of
from winnow.cli.terminal import console
from winnow.tune.frontier import Figures
from winnow.tune.result import Finalist, Result

MEASURED: list[Column[Figures]] = [
    Column("KL\nnats", lambda row: row.kl, ".4f"),
    Column("top-1\n%", lambda row: 100 * row.agreement, ".1f"),
]
MEMORY: Column[Figures] = Column("memory\nMiB", lambda row: row.total_mib, ".2f")
COUNTED: list[Column[Figures]] = [
    Column("rows\n%", lambda row: 100 * row.rows_share, ".1f"),
    Column("units\nread\n%", lambda row: 100 * row.units_share, ".1f"),
    MEMORY,
]


def show(result: Result, model: str, out_plan: Path | None) -> None:
    """Print everything about a search, as far as it got. out_plan: where the plan has been written."""
    screen = console()
    for line in result.skipped:
        screen.print(line, soft_wrap=True)
    if not result.frontier:
        screen.print("no plan was measured; give more time with --time-limit")
        return
    screen.print(_frontier_table(result, model))
    if result.finalists:
        screen.print(_finalists_table(result))
    for line in _closing(result, out_plan):
        screen.print(line, soft_wrap=True)


def plan_file(result: Result, model: str) -> str:
    """The recommended plan, and in comments how it was found. Asserts that there is one."""
    best = result.recommended
    assert best is not None
    assert best.confirmed is not None
    lines = [
        f"found by winnow {winnow.__version__} tune on {date.today().isoformat()} for {model}",
        f"limits: {result.limits}",
        f"search, {best.searched.prompts} prompts: {_figures(best.searched)}",
        f"confirmation, {best.confirmed.prompts} prompts that the search did not see: {_figures(best.confirmed)}",
        f"answered in turns, {answered(result)} of the latter: {_times(best)}",
    ]
    return "".join(f"# {line}\n" for line in lines) + f"{best.plan}\n"


def answered(result: Result) -> int:
    """How many prompts the finalists have answered, of those that there was time for."""
    return max((each.timed.examples for each in result.finalists if each.timed is not None), default=0)


def _frontier_table(result: Result, model: str) -> Table:
    count = result.frontier[0].prompts
    title = f"{model}: plans that no other beats, {count} prompts of the search"
    note = "means of KL and top-1; rows and units read: of full attention's"
    return table_of(result.frontier, {"plan": lambda row: row.plan}, [*MEASURED, *COUNTED], title=title, note=note)


def _finalists_table(result: Result) -> Table:
    columns: list[Column[Finalist]] = [
        *(column.of(lambda each: each.confirmed) for column in (*MEASURED, MEMORY)),
        *(column.of(lambda each: each.timed) for column in (SCORE, *TIMES)),
        Column("answer\ns", lambda each: each.answer_s, ".3f"),
        Column("keeps\nto limits", lambda each: "yes" if each.keeps else "no"),
    ]
    return table_of(
        result.finalists,
        {"plan": lambda each: each.plan},
        columns,
        title=f"finalists, {result.confirmation_prompts} prompts that the search did not see",
        note=f"score and times: of {answered(result)} of these prompts, answered in turns with full attention; times "
        "are medians; answer: TTFT + (mean tokens of full attention's answers - 1) * TPOT",
    )


def _closing(result: Result, out_plan: Path | None) -> list[str]:
    lines = []
    if result.ended:
        stages = ", ".join(result.ended)
        lines.append(f"time was up in: {stages}; this is the best so far (--state and a second run go on)")
    if (best := result.recommended) is not None and best.confirmed is not None:
        lines.append(f"recommended: {best.plan}")
        lines.append(f"limits ({result.limits}) are kept on prompts the search did not see: {_figures(best.confirmed)}")
        if out_plan is not None:
            lines.append(f"written to {out_plan}; use it with --plan @{out_plan}")
    elif (near := result.closest) is not None:
        reasons = "; ".join(near.missed) or "it was not confirmed and timed in time"
        lines.append(f"no plan was found to keep to the limits ({result.limits})")
        lines.append(f"closest: {near.plan}: {reasons}")
    return lines


def _figures(row: Figures) -> str:
    return (
        f"KL {row.kl:.4g} nats (90 % bound {row.kl_bound:.4g}), agreement {row.agreement:.4g} "
        f"({row.agreement_bound:.4g}), memory {row.total_mib:.2f} MiB"
    )


def _times(each: Finalist) -> str:
    row = each.timed
    if row is None or each.answer_s is None:
        return "not reached"
    tpot = "" if row.tpot_s is None else f", TPOT {row.tpot_s.median:.4g} s"
    return f"TTFT {row.ttft_s.median:.4g} s{tpot}, {each.answer_s:.4g} s per answer"
