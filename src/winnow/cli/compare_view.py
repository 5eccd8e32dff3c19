"""How a comparison looks: a table per length, a line per plan on what was traded, and one example."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from winnow.cli.tables import MIB, Column, percent, table_of
from winnow.cli.terminal import console
from winnow.evaluation.compare import DOCUMENT, Row, verdict
from winnow.evaluation.evaluate import Record
from winnow.evaluation.fidelity import Fidelity
from winnow.evaluation.peers.compare import Answer
from winnow.evaluation.peers.summary import FULL, PeerRow, best_of

ANSWER_CHARACTERS = 600  # of an answer shown
TIMES: list[Column[Row | PeerRow]] = [
    Column("TTFT\ns", lambda row: row.ttft_s.median, ".3f", "ttft"),
    Column("TPOT\nms", lambda row: 1000 * row.tpot_s.median if row.tpot_s else None, ".2f", "tpot"),
]
SCORE: Column[Row | PeerRow] = Column("score\n%", lambda row: percent(row.score), ".0f")
COSTS: list[Column[Row]] = [
    *TIMES,
    Column("memory\nMiB", lambda row: row.total_bytes / MIB, ".2f", "total"),
    Column("rows\n%", lambda row: 100 * row.rows_share, ".1f"),
    Column("units\nread\n%", lambda row: percent(row.units_share), ".1f"),
]
FIDELITY: list[Column[Fidelity]] = [
    Column("KL\nnats", lambda found: found.kl, ".4f"),
    Column("top-1\n%", lambda found: 100 * found.top1, ".0f"),
]
PEER_COSTS: list[Column[PeerRow]] = [
    *TIMES,
    Column("tokens/s", lambda row: row.tokens_per_s, ".1f", "tokens_per_s"),
    Column("cache\nMiB", lambda row: row.cache_bytes / MIB, ".2f", "cache"),
    Column("memory\nMiB", lambda row: row.peak_bytes and row.peak_bytes / MIB, ".0f", "peak"),
    Column("same\n%", lambda row: percent(row.same_tokens), ".0f"),
]
PEER_NOTE = (
    "times: medians; tokens/s: new tokens over the whole time; cache: held at the end, with all that a plan holds "
    "beside units; memory: the most resident in the arm's process"
)


def show(rows: Sequence[Row], records: Sequence[Record], fidelities: Sequence[Fidelity], model: str) -> None:
    """Print everything about a comparison; `rows` and `records` of finished examples only."""
    screen = console()
    if not rows:
        screen.print("no example was answered under every plan")
        return
    for length in dict.fromkeys(row.length for row in rows):
        group = [row for row in rows if row.length == length]
        screen.print(results_table(group, fidelities, model))
        for row in group[1:]:
            screen.print(verdict(row, group[0]), soft_wrap=True)
        screen.print()
    screen.print(example_panel(records))


def results_table(rows: Sequence[Row], fidelities: Sequence[Fidelity], model: str) -> Table:
    """One length: a row per plan, full attention first."""
    full = rows[0]
    title = f"{model}, {full.length:,} prompt tokens"
    if tasks := len(full.scores):
        count = full.examples // tasks
        title += f", {count} example{'s' * (count > 1)} per task"
    known = {each.plan: each for each in fidelities}
    columns = [*_scores(full), *COSTS, *(column.of(lambda row: known.get(row.plan)) for column in FIDELITY if known)]
    return table_of(rows, {"plan": lambda row: row.plan}, columns, title=title, note="times: medians", ratios=of_full)


def of_full(row: Row) -> Mapping[str, float]:
    """The figures of a plan over those of full attention, which has none of its own."""
    return {} if row.plan == FULL else row.ratios


def _scores(row: Row | PeerRow) -> list[Column[Any]]:
    """The mean score of each task that `row` has one of."""

    def column(task: str) -> Column[Any]:
        return Column(task.replace("_", "\n") + "\n%", lambda row: percent(row.scores.get(task)), ".0f")

    return [column(task) for task in row.scores]


def show_peers(rows: Sequence[PeerRow], answers: Sequence[Answer], model: str, beside: Sequence[str]) -> None:
    """Print a table per length, and a line per arm on what it costs of what the first peer does.

    Where several arms are of the first peer's family, it is the best of them in each figure.
    """
    screen = console()
    if not rows:
        screen.print("no example was answered")
    for length in dict.fromkeys(row.length for row in rows):
        group = [row for row in rows if row.length == length]
        screen.print(peers_table(group, model))
        for line in _peer_lines(group, beside[-1]):
            screen.print(line, soft_wrap=True)
        screen.print()
    own = [answer for answer in answers if answer.task == DOCUMENT]
    for answer in own:
        screen.print(_line(answer.arm, answer.text.strip()[:ANSWER_CHARACTERS] or "(nothing)"))


def peers_table(rows: Sequence[PeerRow], model: str) -> Table:
    """One length: a row per arm, in the order they were given."""
    answers: Column[PeerRow] = Column("answers", lambda row: row.examples)
    return table_of(
        rows,
        {"arm": lambda row: row.arm},
        [answers, *_scores(rows[0]), *PEER_COSTS],
        title=f"{model}, {rows[0].length:,} prompt tokens",
        note=PEER_NOTE,
        ratios=lambda row: row.ratios.get(FULL, {}),
    )


def _peer_lines(rows: Sequence[PeerRow], first: str) -> Iterator[str]:
    family, ratios = first.partition(":")[0], [row.ratios.get(first, {}) for row in rows]
    other = f"{first}'s"
    if sum(row.arm.partition(":")[0] == family for row in rows) > 1:
        most, arms = best_of(rows, family), {row.arm: row for row in rows}
        named = ((column, most[column.ratio].arm) for column in PEER_COSTS if column.ratio in most)
        yield f"{family} at its best: {', '.join(f'{column.said(arms[arm])} ({arm})' for column, arm in named)}"
        other, figures = f"{family}'s best", [row.figures for row in rows]
        ratios = [{name: row[name] / best.value for name, best in most.items() if name in row} for row in figures]
    for row, found in zip(rows, ratios, strict=True):
        if found:
            shown = ", ".join(f"{name.replace('_per_', '/')} {ratio:.2f}x" for name, ratio in found.items())
            yield f"{row.arm}, of {other}: {shown}"


def example_panel(records: Sequence[Record]) -> Panel:
    """The first example on which the plans' answers score differently, or the first of all; the plans side by side."""
    groups: dict[tuple[str, int, float | None, int], list[Record]] = {}
    for record in records:
        groups.setdefault((record.task, record.length, record.depth, record.index), []).append(record)
    differing = [group for group in groups.values() if len({record.score for record in group}) > 1]
    shown = (differing or list(groups.values()))[0]
    answers = Table(expand=True, show_edge=False)
    ordered = sorted(shown, key=lambda record: record.plan != FULL)
    for record in ordered:
        answers.add_column(record.plan, ratio=1, overflow="fold")
    answers.add_row(*(_answer(record) for record in ordered))
    first = shown[0]
    if first.task == DOCUMENT:
        return Panel(Group(*[_line("question", q) for q in [first.question] if q], answers), title="answers")
    if differing:
        title = f"{first.task}, the first of {len(differing)} examples (of {len(groups)}) on which the scores differ"
    else:
        title = f"{first.task}, the first of {len(groups)} examples; all plans score the same on each"
    lines = [_line("question", first.question), _line("expected", " | ".join(first.answers))]
    return Panel(Group(*lines, answers), title=title)


def _line(name: str, value: str) -> Text:
    return Text(f"{name}: ", style="bold").append(value, style="not bold")


def _answer(record: Record) -> Text:
    text = record.text.strip()
    if len(text) > ANSWER_CHARACTERS:
        text = text[:ANSWER_CHARACTERS] + " ..."
    if record.score is None:
        return Text(text or "(nothing)")
    style = "green" if record.score == 1 else "red" if record.score == 0 else "yellow"
    return Text(f"{text or '(nothing)'}\n[{100 * record.score:.0f} %]", style=style)
