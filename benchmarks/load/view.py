"""What `load` has found, as tables."""

from collections.abc import Callable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from benchmarks.load.arriving import ArrivingRow
from benchmarks.load.memory import Round
from benchmarks.load.streams import Span, StreamsRow
from winnow.cli.terminal import new_table, size

STREAMS: dict[str, Callable[[StreamsRow], str]] = {
    "asked": lambda row: str(row.requests),
    "lost": lambda row: str(row.lost),
    "same as\nalone": lambda row: f"{row.same} of {row.compared}" if row.compared else "-",
    "another's": lambda row: str(row.anothers),
    "told to\ncome back": lambda row: str(row.refused),
    "prompt\ntokens": lambda row: f"{row.prompt[0]:,} to {row.prompt[1]:,}",
    "TTFT p50, p90, p99\ns": lambda row: _three(row.ttft_s, 1, 2),
    "ITL p50, p90, p99\nms": lambda row: _three(row.itl_s, 1000, 1),
}
ARRIVING: dict[str, Callable[[ArrivingRow], str]] = {
    "prompt\ntokens": lambda row: f"{row.prompt:,.0f}",
    "gaps": lambda row: f"{row.gaps:,}",
    "p50 before\nms": lambda row: f"{1000 * row.p50_before_s:.1f}",
    "p99 before\nms": lambda row: f"{1000 * row.p99_before_s:.1f}",
    "p50\nms": lambda row: f"{1000 * row.p50_s:.1f}",
    "p99\nms": lambda row: f"{1000 * row.p99_s:.1f}",
    "p99, of\np99 before": lambda row: f"{row.ratio:.2f}",
    "p99, of\np50 before": lambda row: f"{row.of_median:.2f}",
    "TTFT\ns": lambda row: f"{row.ttft_s:.2f}",
    "of alone\nx": lambda row: f"{row.of_alone:.2f}",
    "ended\nearly": lambda row: str(row.ended),
}
MEMORY: dict[str, Callable[[Round], str]] = {
    "requests": lambda each: f"{each.look.requests:,}",
    "resident\nMiB": lambda each: _mib(each.look.resident),
    "retained\nMiB": lambda each: _mib(each.look.retained),
    "reserved\nMiB": lambda each: _mib(each.look.reserved),
    "running": lambda each: "-" if each.look.running is None else str(each.look.running),
}
OF_STREAMS = (
    "same: of those asked again alone, that had the same text then; another's: that had the text of another request "
    "instead; told to come back: times, which TTFT includes; ITL: between two pieces of a stream"
)
OF_ARRIVING = (
    "gaps between pieces of running streams, before the prompt comes and until its first token; TTFT: of that prompt, "
    "and over one as long on an idle server; ended early: streams that were over before that"
)
OF_MEMORY = "when nothing is under way; the first look is the warm-up's. retained: of sequences that have ended"


def streams_table(
    rows: Sequence[StreamsRow],
    together: Span | None,
    alone: Span | None,
    resident: Sequence[int | None],
    problems: Mapping[str, int],
) -> RenderableType:
    table = _table("streams at once", "kind", STREAMS, OF_STREAMS, {row.kind: row for row in rows})
    lines = [] if together is None else [f"{together.tokens_per_s:.1f} tokens/s at once"]
    if together is not None and alone is not None:
        ratio = together.tokens_per_s / alone.tokens_per_s
        lines[0] += f", {alone.tokens_per_s:.1f} one at a time: {ratio:.2f} times that"
        if alone.cached:
            lines[0] += f", where {alone.cached:,} tokens of prompts had been computed before"
    if None not in resident:
        lines.append(f"resident memory: {' before, '.join(size(each or 0) for each in resident)} after")
    lines += [f"{count} times: {problem}" for problem, count in problems.items()]
    return Group(table, *lines)


def arriving_table(rows: Sequence[ArrivingRow], streams: int) -> RenderableType:
    title = f"a prompt comes while {streams} streams run"
    return _table(title, "arrival", ARRIVING, OF_ARRIVING, {row.arrival: row for row in rows})


def memory_table(rounds: Sequence[Round], ends: Mapping[str, int]) -> RenderableType:
    named = {str(index): each for index, each in enumerate(rounds)}
    first, last = rounds[0].look.resident, rounds[-1].look.resident
    lines = [", ".join(f"{count:,} {end}" for end, count in ends.items())]
    if len(rounds) > 1 and first and last:
        lines.append(f"resident memory after all: {100 * (last / first - 1):+.1f} % of that after the warm-up")
    return Group(_table("memory of a server", "look", MEMORY, OF_MEMORY, named), *lines)


def _table(
    title: str, first: str, columns: Mapping[str, Callable[..., str]], note: str, rows: Mapping[str, object]
) -> Table:
    table = new_table(title, note)
    table.add_column(first)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in rows.items():
        table.add_row(name, *(show(row) for show in columns.values()))
    return table


def _three(found: Sequence[float] | None, times: float, digits: int) -> str:
    return "-" if found is None else "  ".join(f"{times * each:.{digits}f}" for each in found)


def _mib(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**20:,.1f}"
