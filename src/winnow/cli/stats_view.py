"""What a run cost, in words and units that people read."""

from rich.table import Table

from winnow.cli.terminal import new_table, size
from winnow.stats import Stats

CAPTION = (
    "row: one token in one layer; unit: the key and value of one token in one layer and KV head; of full: what full "
    "attention would have taken"
)


def stats_table(stats: Stats, plan: str) -> Table:
    """Every figure of a run, those left out that are 0 because the plan has no such thing."""
    table = new_table(plan, CAPTION)
    table.add_column("what it took")
    table.add_column("", justify="right")
    for name, value in _lines(stats):
        table.add_row(name, value)
    return table


def _lines(stats: Stats) -> list[tuple[str, str]]:
    steps = stats.slow_steps + stats.fast_steps
    lines = [
        ("prompt, new tokens", f"{stats.prompt_tokens:,}, {stats.new_tokens:,}"),
        ("time to the first token", f"{stats.ttft_s:.3f} s"),
        ("time per further token", f"{1000 * stats.tpot_s:.2f} ms"),
        ("in all", f"{stats.total_s:.3f} s"),
        ("rows computed", _of_full(stats.rows_computed, stats.rows_full)),
        ("units read by decode steps", _of_full(stats.units_read, stats.units_full)),
        ("memory, at most", size(stats.total_bytes)),
    ]
    if stats.aux_bytes:
        lines.append(("beside the cache, at most", size(stats.aux_bytes)))
    lines += [("cache at the end", size(stats.cache_bytes)), ("cache, at most", size(stats.peak_cache_bytes))]
    lines.append(("reserved for the cache", size(stats.allocated_bytes)))
    if stats.fast_steps and stats.slow_steps:
        lines.append(("steps that read everything", f"{stats.slow_steps:,} of {steps:,}"))
    if stats.revived_rows:
        lines.append(("rows computed late", f"{stats.revived_rows:,}"))
    return lines


def _of_full(part: int, whole: int) -> str:
    return f"{part:,} ({100 * part / whole:.1f} % of full)" if whole else f"{part:,}"
