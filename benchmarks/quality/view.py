"""How figures of the protocol look on a terminal."""

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType

from benchmarks.fidelity_by_domain import Interval
from benchmarks.quality.arms import FULL
from benchmarks.quality.choose import Choice
from benchmarks.quality.figures import ALL, ENOUGH, ScoreRow, WindowRow
from benchmarks.quality.records import Record
from winnow.cli.terminal import new_table

WIDE = 7  # tasks side by side
ARM = 25  # least width of the column of arms
SCORES: dict[str, Callable[[ScoreRow], str]] = {
    "score\n%": lambda row: f"{100 * row.score:.1f}",
    "points": lambda row: f"{100 * row.difference.mean:+.1f}",
    "95 %": lambda row: _range(row.difference, 100, 1, ".."),
    "n": lambda row: f"{row.questions}{'*' if row.few else ''}",
}
WINDOWS: dict[str, Callable[[WindowRow], str]] = {
    "KL": lambda row: f"{row.kl.mean:.4f}",
    "KL, 95 %": lambda row: _range(row.difference, 1, 3, "..") if row.windows > 1 else "",
    "top-1\n%": lambda row: f"{100 * row.top1.mean:.1f}",
    "per-\nplexity": lambda row: f"{row.perplexity:.2f}",
    "of full\n95 %": lambda row: _range(row.ratio_against, 1, 3) if row.windows > 1 else "",
    "w": lambda row: str(row.windows),
}
# Headings where arms are compared with another than full attention.
COMPARED = {"KL, 95 %": "less its\n95 %", "of full\n95 %": "of its\n95 %"}
COSTS = ("rows", "bytes", "after", "held", "units")
NOTE = (
    "points: from {}, in pairs, with Bonett and Price's interval; *: fewer than "
    f"{ENOUGH} different questions in a task, no sentence may rest on it. KL(full || arm) of the next token, nats; "
    "less its: that of the arm that points are from, in pairs; of full, of its: the perplexity over full attention's, "
    "or that arm's, w windows resampled. rows computed, bytes: the most held at once, after: all at the end, held: "
    "units then, units read by decode steps: of full attention's, over questions (windows where there are none)"
)


def tables(
    scores: Sequence[ScoreRow],
    windows: Sequence[WindowRow],
    title: str,
    refused: Sequence[Record],
    against: str = FULL,
) -> RenderableType:
    """Per length: every arm overall, then the difference of every arm on every task, and its KL in every domain.

    refused: records of arms that the model could not run, which are named below. against: from which scores differ.
    """
    lengths = sorted({row.length for row in (*scores, *windows)})
    shown = [
        table
        for length in lengths
        for table in _of_length(
            [row for row in scores if row.length == length],
            [row for row in windows if row.length == length],
            f"{title}, {length:,} tokens",
            against,
        )
    ]
    left = [f"left out at {each['length']:,} tokens: {each['arm']}: {each['reason']}" for each in refused]
    return Group(*shown, *left) if shown else "nothing has been measured yet"


def _of_length(
    scores: Sequence[ScoreRow], windows: Sequence[WindowRow], title: str, against: str
) -> list[RenderableType]:
    tasks = [task for task in dict.fromkeys(row.task for row in scores) if task != ALL]
    domains = [domain for domain in dict.fromkeys(row.domain for row in windows) if domain != ALL]
    overall = {row.arm: row for row in scores if row.task == (tasks[0] if len(tasks) == 1 else ALL)}
    texts = {row.arm: row for row in windows if row.domain == (domains[0] if len(domains) == 1 else ALL)}
    shown: list[RenderableType] = [_overall(overall, texts, title, against)]
    if len(tasks) > 1:
        cells = {(row.arm, row.task): f"{100 * row.difference.mean:+.1f}{'*' if row.few else ''}" for row in scores}
        cells |= {(against, row.task): f"{100 * row.full:.1f} %" for row in scores}
        for first in range(0, len(tasks), WIDE):
            part = tasks[first : first + WIDE]
            shown.append(_matrix(f"{title}: points from {against}, by task", [*overall], part, cells))
    if len(domains) > 1:
        kls = {(row.arm, row.domain): f"{row.kl.mean:.4f}" for row in windows}
        shown.append(_matrix(f"{title}: KL, by domain", [arm for arm in texts if arm != FULL], domains, kls))
    return shown


def _overall(scores: dict[str, ScoreRow], windows: dict[str, WindowRow], title: str, against: str) -> RenderableType:
    said, headings = ("full attention", {}) if against == FULL else (against, COMPARED)
    table = new_table(title, NOTE.format(said))
    table.add_column("arm", overflow="fold", min_width=ARM)
    for heading in (*(SCORES if scores else ()), *(WINDOWS if windows else ()), *(f"{cost}\n%" for cost in COSTS)):
        table.add_column(headings.get(heading, heading), justify="right", no_wrap=True)
    for arm in dict.fromkeys((*scores, *windows)):
        answers, text = scores.get(arm), windows.get(arm)
        cells = [show(answers) if answers else "" for show in (SCORES.values() if scores else ())]
        cells += [show(text) if text else "" for show in (WINDOWS.values() if windows else ())]
        costs = (answers or windows[arm]).costs
        cells += ["" if (share := costs[cost]) is None else f"{100 * share:.1f}" for cost in COSTS]
        table.add_row(arm, *cells)
    return table


def _matrix(
    title: str, arms: Sequence[str], columns: Sequence[str], cells: dict[tuple[str, str], str]
) -> RenderableType:
    table = new_table(title)
    table.add_column("arm", overflow="fold", min_width=ARM)
    for column in columns:
        table.add_column(column.replace("_", "\n"), justify="right", no_wrap=True)
    for arm in arms:
        table.add_row(arm, *(cells.get((arm, column), "") for column in columns))
    return table


def choices_table(choices: Sequence[Choice], told: Sequence[str], rule: str) -> RenderableType:
    """A section per cost, a row per policy, the highest score first."""
    table = new_table("chosen on validation", rule)
    for heading in ("cost", "policy", "setting"):
        table.add_column(heading, overflow="fold")
    for heading in ("share\n%", "points", "KL", "fit", "tried"):
        table.add_column(heading, justify="right", no_wrap=True)
    for cost in dict.fromkeys(each.cost for each in choices):
        here = sorted((each for each in choices if each.cost == cost), key=lambda each: -(each.difference or 0.0))
        for each in here:
            points = "" if each.difference is None else f"{100 * each.difference:+.1f}"
            kl = "" if each.kl is None else f"{each.kl:.4f}"
            counts = (str(each.fitting), str(each.tried))
            name = ", ".join(f"{count} <= {most:g}" for count, most in each.at_most.items())
            shares = " ".join(f"{100 * share:.1f}" for share in each.shares.values())
            ends = each is here[-1]
            table.add_row(name, each.policy, each.plan, shares, points, kl, *counts, end_section=ends)
    return Group(table, *told)


def _range(interval: Interval, scale: float, digits: int, between: str = "-") -> str:
    return f"{scale * interval.low:.{digits}f}{between}{scale * interval.high:.{digits}f}"
