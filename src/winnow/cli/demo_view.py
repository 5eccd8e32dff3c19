"""How the demo looks: what every plan costs and keeps, what was traded, and all answers, side by side."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from winnow.cli.terminal import console, new_table
from winnow.evaluation.compare import Row
from winnow.evaluation.demo import Asked, Standing
from winnow.evaluation.evaluate import Record
from winnow.plan import Plan

MIB = 2**20
WIDTH = 118  # columns of the answers' table
CAPTION = (
    "times: medians; memory: units and all that a plan holds beside them, at the peak\n"
    "x: of full's; same: answers equal to full's; KL, top-1: of the next token, along full's answers"
)
COLUMNS = ["right\nof {n}", "TTFT\ns", "TPOT\nms", "memory\nMiB", "same\nof {n}", "KL\nnats", "top-1\n%"]


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
    table = new_table(
        f"{model} on {title}: {full.questions} questions, {full.cost.length:,} prompt tokens each", CAPTION
    )
    table.add_column("plan", overflow="fold", min_width=40)
    for heading in COLUMNS:
        table.add_column(heading.format(n=full.questions), justify="right")
    for each in found:
        distance = ["-", "-"] if each.kl is None or each.top1 is None else [f"{each.kl:.3f}", f"{100 * each.top1:.0f}"]
        table.add_row(each.plan, str(each.right), *_costs(each.cost), str(each.same), *distance)
    return table


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


def _costs(row: Row) -> list[str]:
    tpot = f"{1000 * row.tpot_s.median:.1f}" if row.tpot_s else "-"
    figures = {"ttft": f"{row.ttft_s.median:.2f}", "tpot": tpot, "total": f"{row.total_bytes / MIB:.1f}"}
    if row.plan == "full":
        return list(figures.values())
    return [f"{shown}\n{row.ratios[name]:.2f}x" if name in row.ratios else shown for name, shown in figures.items()]
