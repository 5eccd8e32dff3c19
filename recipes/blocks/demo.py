"""Figures of `winnow demo` in the README: every plan on the same questions, and all answers."""

from __future__ import annotations

import re

from .tables import MIB, Block, Column, Columns, Record, code, table

NAMES = re.compile(r"\(.*?\)(?= \+ |$)")  # the parameters of a plan's policies


def plans(document: Record) -> str:
    """The table of plans; x: of full attention's."""
    rows = document["summary"]
    questions = rows[0]["questions"]
    columns: Columns = {
        "plan": code("plan"),
        f"right of {questions}": lambda row: str(row["right"]),
        "TTFT, s": _time("ttft_s", "ttft", 1, 2),
        "TPOT, ms": _time("tpot_s", "tpot", 1000, 1),
        "memory, MiB": lambda row: f"{row['cost']['total_bytes'] / MIB:.1f}" + _ratio(row, "total"),
        f"same of {questions}": lambda row: str(row["same"]),
        "KL, nats": lambda row: "-" if row["kl"] is None else f"{row['kl']:.3f}",
        "top-1, %": lambda row: "-" if row["top1"] is None else f"{100 * row['top1']:.0f}",
    }
    about = (
        f"{document['model']}, {questions} questions, {rows[0]['cost']['length']:,} prompt tokens each, "
        f"{document['threads']} threads. Times: medians; memory: units and all that a plan holds beside them, at the "
        "peak; x: of full's; same: answers equal to full's; KL, top-1: of the next token, along full's answers. Every "
        f"prompt was computed from its first token, though all begin with the same document. {questions} questions "
        "show what a plan does; they do not measure it."
    )
    return f"{table(columns, rows)}\n\n{about}"


def _time(name: str, ratio: str, factor: float, digits: int) -> Column:
    return lambda row: f"{factor * row['cost'][name]['median']:.{digits}f}" + _ratio(row, ratio)


def _ratio(row: Record, name: str) -> str:
    return "" if row["plan"] == "full" else f" ({row['cost']['ratios'][name]:.2f}x)"


def answers(document: Record) -> str:
    """A list of the questions, each with what the plans answered; equal answers share a line."""
    lines = ["<details><summary>All answers</summary>", ""]
    for number, asked in enumerate(document["questions"], start=1):
        lines.append(f"{number}. **{asked['question']}** [{' or '.join(asked['accepted'])}]")
        by_text: dict[str, list[Record]] = {}
        for answer in asked["answers"]:
            by_text.setdefault(" ".join(answer["text"].split()), []).append(answer)
        for text, found in by_text.items():
            mark = "✓" if found[0]["score"] == 1 else "✗"
            names = ", ".join(f"`{NAMES.sub('', answer['plan'])}`" for answer in found)
            said = text.replace("_", r"\_")
            lines.append(f"   - {mark} {names}: {said}")
    return "\n".join([*lines, "", "</details>"])


BLOCKS = {
    "demo": Block(plans, ("demo.json",)),
    "demo-answers": Block(answers, ("demo.json",)),
}
