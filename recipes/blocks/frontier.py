"""Figures of docs/results/frontier.md, and what the README says of them."""

from __future__ import annotations

from operator import itemgetter

from recipes.frontier.figures import held, most_bytes
from recipes.slowfast.figures import difference, score, share

from .tables import MEMORY, Block, Column, Columns, Record, of_memory, one, table, versions

JOINED = (  # the plan that saves all costs at once and keeps the score
    "speed(cutoff=2) + locret(budget=6656) + slowfast(budget=1024, interval=2, min_gap=2, memory=0.5)"
)
ALONE, ADAPTER = "speed(cutoff=2)", "needle-speed-2"


def markdown(records: list[Record]) -> str:
    """A table per length, full attention first, then by verb; then the plans that were refused, with the reason."""
    measured = [record for record in records if record["rows"]]
    parts = []
    for length in dict.fromkeys(record["length"] for record in measured):
        here = [record for record in measured if record["length"] == length]
        parts += [f"## {length:,} prompt tokens", table(_columns(one(here, arm="full")), here)]
    if refused := {record["arm"]: record["refused"] for record in records if record["refused"]}:
        parts += ["## Refused", "\n".join(f"- `{arm}`: {reason}" for arm, reason in refused.items())]
    return "\n\n".join([*parts, *_about(measured)]) + "\n"


def _columns(full: Record) -> Columns:
    """Costs are in percent of full attention's."""
    counted = of_memory(full["rows"][0])
    return {
        "": lambda record: str(record["number"]),
        "verb": lambda record: record["verb"],
        "plan": lambda record: f"`{record['plan']}`",
        "adapter": lambda record: record["adapter"] or "",
        "n": lambda record: str(len(record["rows"])),
        "score, %": lambda record: f"{score(record):.1f}",
        "less full (95 %)": lambda record: _gained(record, full),
        **{task: _task(task) for task in dict.fromkeys(row["task"] for row in full["rows"])},
        "rows, %": lambda record: f"{rows_share(record):.1f}",
        "units held, %": lambda record: f"{held(record, full, itemgetter('cache_bytes')):.1f}",
        f"{MEMORY[counted][0]}, %": lambda record: f"{memory_share(record, full):.1f}",
        "units read, %": lambda record: f"{units_share(record):.1f}",
        "TTFT, s": lambda record: f"{_median(record, 'ttft_s'):.2f}",
        "TPOT, ms": lambda record: f"{1000 * _median(record, 'tpot_s'):.1f}",
    }


def _gained(record: Record, full: Record) -> str:
    if record is full:
        return ""
    gained = difference(record, full)
    return f"{gained.points:+.1f} ({gained.low:+.1f} to {gained.high:+.1f})"


def _task(task: str) -> Column:
    def cell(record: Record) -> str:
        scores = [row["score"] for row in record["rows"] if row["task"] == task]
        return f"{100 * sum(scores) / len(scores):.0f}"

    return cell


def _median(record: Record, name: str) -> float:
    return sorted(row[name] for row in record["rows"])[len(record["rows"]) // 2]


def rows_share(record: Record) -> float:
    """Rows computed, in percent of full attention's."""
    return share([record], "rows_computed", ("rows_full",))


def memory_share(record: Record, full: Record) -> float:
    """The most bytes held at once, of all, in percent of full attention's."""
    return held(record, full, most_bytes)


def units_share(record: Record) -> float:
    """Units read, in percent of full attention's."""
    return share([record], "units_read", ("units_full",))


def _about(measured: list[Record]) -> list[str]:
    commits = ", ".join(sorted({record["commit"] for record in measured}))
    machine, environment = measured[0]["machine"], measured[0]["environment"]
    name, meaning = MEMORY[of_memory(measured[0]["rows"][0])]
    return [
        "Score: mean over the tasks, each as often; in brackets the 95 % interval of the difference to full attention "
        "on the same examples (examples resampled). Rows computed, bytes of units held at the end, the most bytes held "
        "at once, of all, and units read by decode steps: counted, % of full attention's. "
        f"*{name}*: {meaning}. TTFT and TPOT: medians, of one thread, while other processes may have shared the "
        "machine.",
        f"{environment['model']}, {environment['dtype']}, {machine['device']}, {environment['threads']} thread, chunks "
        f"of {environment['prefill_chunk']}; commit {commits}; {versions(environment)}.",
    ]


def _joined(records: list[Record]) -> tuple[Record, Record, Record]:
    """The plan that joins three verbs, the one of these that saves most by itself, and full attention."""
    return one(records, plan=JOINED), one(records, plan=ALONE, adapter=ADAPTER), one(records, arm="full")


def summary(records: list[Record]) -> str:
    """The first paragraphs of the page."""
    joined, alone, full = _joined(records)
    tasks = len({row["task"] for row in joined["rows"]})
    return (
        f"One plan of three verbs keeps the score: `{JOINED}` on `needle` with the adapter `{ADAPTER}` computes "
        f"{rows_share(joined):.1f} % of the rows, holds {memory_share(joined, full):.1f} % of the bytes at most, all "
        f"counted, and reads {units_share(joined):.1f} % of the units, and scores {score(joined):.1f} % on "
        f"{len(joined['rows'])} questions after {joined['length']:,} tokens, {len(joined['rows']) // tasks} of each "
        f"task, where full attention scores {score(full):.1f} %: a difference of {_gained(joined, full)} points. It "
        "was chosen among five settings on these questions, which flatters it.\n\n"
        f"Most of that is `{ALONE}`, which alone has {rows_share(alone):.1f} % of the rows, "
        f"{memory_share(alone, full):.1f} % of the bytes and {units_share(alone):.1f} % of the units, at "
        f"{score(alone):.1f} %. What the other two add is that half as many units are read; the copies and scores that "
        "they hold take up the bytes that they evict."
    )


BLOCKS = {
    "frontier": Block(markdown, ("frontier.json",)),
    "frontier-summary": Block(summary, ("frontier.json",)),
}
