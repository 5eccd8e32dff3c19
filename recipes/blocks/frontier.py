"""Figures of docs/results/frontier.md, and what the README says of them."""

from __future__ import annotations

from recipes.frontier.figures import ALL, UNITS, held
from recipes.slowfast.figures import difference, score, share

from .tables import MEMORY, Block, Column, Columns, Record, of_memory, one, table, versions

JOINED = (  # the plan that saves all costs at once and keeps the score
    "speed(cutoff=2) + locret(budget=6656) + slowfast(budget=1024, interval=2, min_gap=2, memory=0.5)"
)


ALONE = "speed(cutoff=2)"


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
        "units held, %": lambda record: f"{held(record, full, *UNITS):.1f}",
        "with all beside, %": lambda record: f"{held(record, full, *ALL):.1f}",
        f"{MEMORY[counted][0]}, %": lambda record: f"{held(record, full, counted):.1f}",
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


def units_share(record: Record) -> float:
    """Units read, in percent of full attention's."""
    return share([record], "units_read", ("units_full",))


def _about(measured: list[Record]) -> list[str]:
    commits = ", ".join(sorted({record["commit"] for record in measured}))
    machine, environment = measured[0]["machine"], measured[0]["environment"]
    name, meaning = MEMORY[of_memory(measured[0]["rows"][0])]
    return [
        "Score: mean over the tasks, each as often; in brackets the 95 % interval of the difference to full attention "
        "on the same examples (examples resampled). Rows computed, bytes of units held at the end, with the "
        "most that is held beside them, the most bytes held at once, and units read by decode steps: counted, % of "
        "full attention's. "
        f"*{name}*: {meaning}. TTFT and TPOT: medians, of one thread, while other processes may have shared the "
        "machine.",
        f"{environment['model']}, {environment['dtype']}, {machine['device']}, {environment['threads']} thread, chunks "
        f"of {environment['prefill_chunk']}; commit {commits}; {versions(environment)}.",
    ]


def _joined(records: list[Record]) -> tuple[Record, Record]:
    """The plan that joins three verbs, and full attention."""
    return one(records, plan=JOINED), one(records, arm="full")


def summary(records: list[Record]) -> str:
    """The first paragraph of the page."""
    joined, full = _joined(records)
    alone = one(records, plan=ALONE, adapter=joined["adapter"], length=joined["length"])
    return (
        f"One plan cuts three costs at once and keeps the score: `{JOINED}` on `needle` with the adapter "
        f"`{joined['adapter']}` computes {rows_share(joined):.1f} % of the rows, holds "
        f"{100 / held(joined, full, *ALL):.1f} times fewer bytes, of units and all beside them, and reads "
        f"{100 / units_share(joined):.1f} times fewer units than full attention, and scores {score(joined):.1f} % on "
        f"{len(joined['rows'])} questions after {joined['length']:,} tokens where full attention scores "
        f"{score(full):.1f} %: a difference of {_gained(joined, full)} points. It was chosen among five settings on "
        f"these questions, which flatters it. `{ALONE}` alone, with the same adapter, computes "
        f"{rows_share(alone):.1f} % of the rows and holds {100 / held(alone, full, *ALL):.1f} times fewer bytes: what "
        "the other two save of units, they hold in scores and copies."
    )


def caption(records: list[Record]) -> str:
    """What the README says below the picture."""
    joined, full = _joined(records)
    return (
        f"*Every policy alone and plans of several on `needle` at {full['length']:,} tokens, over what each computes, "
        f"holds and reads. Number {joined['number']} joins `speed`, `locret` and `slowfast`: {rows_share(joined):.0f} "
        f"% of the rows, {100 / held(joined, full, *ALL):.1f} times fewer bytes and "
        f"{100 / units_share(joined):.1f} times fewer units read, at a score of {score(joined):.1f} where full "
        f"attention has {score(full):.1f} ([tables](docs/results/frontier.md)). How close they stay to full attention "
        "on books, essays, PEPs, Wikipedia, meetings: [fidelity](docs/results/fidelity.md).*"
    )


BLOCKS = {
    "frontier": Block(markdown, ("frontier.json",)),
    "frontier-summary": Block(summary, ("frontier.json",)),
    "frontier-caption": Block(caption, ("frontier.json",)),
}
