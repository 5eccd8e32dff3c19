"""How a comparison looks: a table per length, a line per plan on what was traded, and one example."""

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from winnow.cli.terminal import console, new_table
from winnow.evaluation.compare import DOCUMENT, Row, verdict
from winnow.evaluation.evaluate import Record
from winnow.evaluation.fidelity import Fidelity
from winnow.evaluation.peers.compare import Answer
from winnow.evaluation.peers.summary import FULL, PeerRow, best_of

MIB = 2**20
ANSWER_CHARACTERS = 600  # of an answer shown
PLAN_COLUMNS = 17  # least width of the column of plans
MEMORY = "memory: the most that units and all that a plan holds beside them take at once"
COSTS = ["TTFT\ns", "TPOT\nms", "memory\nMiB", "rows\n%", "units\nread\n%"]


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
    full, tasks = rows[0], list(rows[0].scores)
    title = f"{model}, {full.length:,} prompt tokens"
    if tasks:
        count = full.examples // len(tasks)
        title += f", {count} example{'s' * (count > 1)} per task"
    table = new_table(title, f"times: medians; {MEMORY}; x: of full attention's")
    table.add_column("plan", overflow="fold", min_width=PLAN_COLUMNS)
    headings = (
        [task.replace("_", "\n") + "\n%" for task in tasks] + COSTS + (["KL\nnats", "top-1\n%"] if fidelities else [])
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    by_plan = {each.plan: each for each in fidelities}
    for row in rows:
        scores = [f"{100 * row.scores[task]:.0f}" if task in row.scores else "-" for task in tasks]
        table.add_row(row.plan, *scores, *_costs(row), *(_fidelity(by_plan.get(row.plan)) if fidelities else ()))
    return table


PEER_CAPTION = (
    "times: medians; tokens/s: new tokens over the whole time; cache: held at the end, with all that a plan holds "
    "beside units; memory: the most resident "
    "in the arm's process; same: answers equal to full's; x: of full's"
)
PEER_COSTS: dict[str, tuple[str, Callable[[PeerRow], str | None]]] = {
    "TTFT\ns": ("ttft", lambda row: f"{row.ttft_s.median:.3f}"),
    "TPOT\nms": ("tpot", lambda row: f"{1000 * row.tpot_s.median:.2f}" if row.tpot_s else None),
    "tokens\n/s": ("tokens_per_s", lambda row: f"{row.tokens_per_s:.1f}"),
    "cache\nMiB": ("cache", lambda row: f"{row.cache_bytes / MIB:.2f}"),
    "memory\nMiB": ("peak", lambda row: f"{row.peak_bytes / MIB:.0f}" if row.peak_bytes else None),
    "same\n%": ("", lambda row: None if row.same_tokens is None else f"{100 * row.same_tokens:.0f}"),
}
BEST: dict[str, Callable[[float], str]] = {
    "ttft": lambda value: f"TTFT {value:.3f} s",
    "tpot": lambda value: f"TPOT {1000 * value:.2f} ms",
    "tokens_per_s": lambda value: f"{value:.1f} tokens/s",
    "cache": lambda value: f"cache {value / MIB:.2f} MiB",
    "peak": lambda value: f"memory {value / MIB:.0f} MiB",
}


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


def _peer_lines(rows: Sequence[PeerRow], first: str) -> Iterator[str]:
    family = first.partition(":")[0]
    if sum(row.arm.partition(":")[0] == family for row in rows) > 1:
        most = best_of(rows, family)
        named = ", ".join(f"{BEST[name](each.value)} ({each.arm})" for name, each in most.items() if name in BEST)
        yield f"{family} at its best: {named}"
        other, ratios = (
            f"{family}'s best",
            [{name: value / most[name].value for name, value in row.figures.items() if name in most} for row in rows],
        )
    else:
        other, ratios = f"{first}'s", [row.ratios.get(first, {}) for row in rows]
    for row, found in zip(rows, ratios, strict=True):
        if found:
            shown = ", ".join(f"{name.replace('_per_', '/')} {ratio:.2f}x" for name, ratio in found.items())
            yield f"{row.arm}, of {other}: {shown}"


def peers_table(rows: Sequence[PeerRow], model: str) -> Table:
    """One length: a row per arm, in the order they were given."""
    tasks = list(rows[0].scores)
    table = new_table(f"{model}, {rows[0].length:,} prompt tokens", PEER_CAPTION)
    table.add_column("arm", overflow="fold", min_width=PLAN_COLUMNS)
    table.add_column("answers", justify="right")
    for heading in [task.replace("_", "\n") + "\n%" for task in tasks] + list(PEER_COSTS):
        table.add_column(heading, justify="right")
    for row in rows:
        costs = []
        for name, show_one in PEER_COSTS.values():
            ratio = row.ratios.get(FULL, {}).get(name)
            shown = show_one(row) or "-"
            costs.append(shown if ratio is None else f"{shown}\n{ratio:.2f}x")
        scores = [f"{100 * row.scores[task]:.0f}" if task in row.scores else "-" for task in tasks]
        table.add_row(row.arm, str(row.examples), *scores, *costs)
    return table


def example_panel(records: Sequence[Record]) -> Panel:
    """The first example on which the plans' answers score differently, or the first of all; the plans side by side."""
    groups: dict[tuple[str, int, float | None, int], list[Record]] = {}
    for record in records:
        groups.setdefault((record.task, record.length, record.depth, record.index), []).append(record)
    differing = [group for group in groups.values() if len({record.score for record in group}) > 1]
    shown = (differing or list(groups.values()))[0]
    answers = Table(expand=True, show_edge=False)
    ordered = sorted(shown, key=lambda record: record.plan != "full")
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


def _costs(row: Row) -> list[str]:
    return [
        _with_ratio(f"{row.ttft_s.median:.3f}", row, "ttft"),
        _with_ratio(f"{1000 * row.tpot_s.median:.2f}", row, "tpot") if row.tpot_s else "-",
        _with_ratio(f"{row.total_bytes / MIB:.2f}", row, "total"),
        f"{100 * row.rows_share:.1f}",
        f"{100 * row.units_share:.1f}" if row.units_share is not None else "-",
    ]


def _with_ratio(text: str, row: Row, name: str) -> str:
    return text if row.plan == "full" or name not in row.ratios else f"{text}\n{row.ratios[name]:.2f}x"


def _fidelity(found: Fidelity | None) -> list[str]:
    return [f"{found.kl:.4f}", f"{100 * found.top1:.0f}"] if found else ["-", "-"]


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
