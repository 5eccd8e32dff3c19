"""What a run cost, in words and units that people read."""

from rich.table import Table

from winnow.cli.tables import facts
from winnow.cli.terminal import size
from winnow.stats import Stats


def stats_table(stats: Stats, plan: str) -> Table:
    """Every figure of a run, those left out that are 0 because the plan has no such thing."""
    steps = stats.slow_steps + stats.fast_steps
    shown = {
        "prompt, new tokens": f"{stats.prompt_tokens:,}, {stats.new_tokens:,}",
        "of the prompt taken over": f"{stats.cached_tokens:,}" if stats.cached_tokens else "",
        "time to the first token": f"{stats.ttft_s:.3f} s",
        "time per further token": f"{1000 * stats.tpot_s:.2f} ms",
        "in all": f"{stats.total_s:.3f} s",
        "rows computed": _of_full(stats.rows_computed, stats.rows_full),
        "units read by decode steps": _of_full(stats.units_read, stats.units_full),
        "pairs read in prefill": _of_full(stats.pairs_read, stats.pairs_full) if stats.pairs_full else "",
        "memory, at most": size(stats.total_bytes),
        "beside the cache, at most": size(stats.aux_bytes) if stats.aux_bytes else "",
        "memory at the end": size(stats.held_bytes),
        "cache at the end": size(stats.cache_bytes),
        "cache, at most": size(stats.peak_cache_bytes),
        "reserved for the cache": size(stats.allocated_bytes),
        "in files, at most": size(stats.disk_bytes) if stats.disk_bytes else "",
        "steps that read everything": f"{stats.slow_steps:,} of {steps:,}"
        if stats.fast_steps and stats.slow_steps
        else "",
        "rows computed late": f"{stats.revived_rows:,}" if stats.revived_rows else "",
    }
    return facts(plan, {name: value for name, value in shown.items() if value}, "what it took", "")


def _of_full(part: int, whole: int) -> str:
    return f"{part:,} ({100 * part / whole:.1f} % of full)" if whole else f"{part:,}"
