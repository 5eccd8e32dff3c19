"""How the demo looks: what every plan costs and keeps, what was traded, and all answers, side by side."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from winnow.cli.compare_view import COSTS, of_full
from winnow.cli.tables import Column, percent, table_of
from winnow.cli.terminal import console
from winnow.evaluation.demo import Asked, Standing
from winnow.evaluation.evaluate import Record
from winnow.plan import Plan

WIDTH = 118  # columns of the answers' table


def show(asked: Sequence[Asked], found: Sequence[Standing], model: str, title: str) -> None:
    """Print everything about the questions that were answered under every plan. title: of the document."""
    screen = console()
    if not found:
        screen.print("no question was answered under every plan")
        return
    screen.print(results_table(found, model, title))
    for each in found[1:]:
        screen.print(traded(each, found[0]), soft_wrap=True)
    note = "Every prompt was computed from its first token, though all begin with the same document. "
    screen.print(note + f"{found[0].questions} questions show what a plan does; they do not measure it.\n")
    screen.print(answers_table(asked))


def results_table(found: Sequence[Standing], model: str, title: str) -> Table:
    """A row per plan, full attention first."""
    full = found[0]
    columns: list[Column[Standing]] = [
        Column(f"right\nof {full.questions}", lambda each: each.right),
        *(column.of(lambda each: each.cost) for column in COSTS if column.ratio),
        Column(f"same\nof {full.questions}", lambda each: each.same),
        Column("KL\nnats", lambda each: each.kl, ".3f"),
        Column("top-1\n%", lambda each: percent(each.top1), ".0f"),
    ]
    return table_of(
        found,
        {"plan": lambda each: each.plan},
        columns,
        title=f"{model} on {title}: {full.questions} questions, {full.cost.length:,} prompt tokens each",
        note="times: medians; KL and top-1 along full's answers",
        ratios=lambda each: of_full(each.cost),
    )


def traded(each: Standing, full: Standing) -> str:
    """One line: what the plan saves, what it costs in time, and what became of the answers."""
    of_full = each.cost.ratios
    parts = [f"TTFT {of_full['ttft']:.2f}x"]
    if "tpot" in of_full:
        parts.append(f"TPOT {of_full['tpot']:.2f}x")
    parts.append(f"memory {of_full['total']:.2f}x")
    lost = full.right - each.right
    answers = "as many right answers" if lost == 0 else f"{abs(lost)} right answer{'s' * (abs(lost) > 1)} "
    if lost:
        answers += "fewer" if lost > 0 else "more"
    return f"{each.plan}: {', '.join(parts)}; {answers}, {each.same} of {each.questions} word for word"


def answers_table(asked: Sequence[Asked]) -> Table:
    """A block per question: the question and what is accepted, then a line per plan; equal answers share one."""
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), width=WIDTH)
    table.add_column(max_width=24, overflow="fold")
    table.add_column(ratio=1, overflow="fold")
    for number, each in enumerate(asked, start=1):
        accepted = " | ".join(each.case.example.references)
        table.add_row(Text(str(number), style="bold"), _joined(each.case.example.question, accepted))
        for plans, record in _alike(each.records):
            right = record.score == 1
            mark, style = ("✓", "green") if right else ("✗", "red")
            text = Text(" ".join(record.text.split()) or "(nothing)", style=style)
            table.add_row(Text(f"  {mark} {', '.join(plans)}", style=style), text)
    return table


def _alike(records: Sequence[Record]) -> list[tuple[list[str], Record]]:
    """Records with the same text as one, with the short names of their plans."""
    by_text: dict[str, list[Record]] = {}
    for record in records:
        by_text.setdefault(record.text, []).append(record)
    return [([_short(record.plan) for record in group], group[0]) for group in by_text.values()]


def _short(plan: str) -> str:
    """The names of a plan's policies, without their parameters."""
    return "+".join(policy.name for policy in Plan.parse(plan).policies.values() if not policy.identity) or "full"


def _joined(question: str, accepted: str) -> Text:
    return Text(question, style="bold").append(f"  [{accepted}]", style="not bold")
