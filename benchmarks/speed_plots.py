"""Pictures of seconds and bytes over tokens, on logarithmic scales."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.draw import claim_title
from benchmarks.memory import MemoryRow
from benchmarks.speed import STOCK
from winnow.cli.draw import GREY, MARKERS, new_figure, plain, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FULL = "full"
MEMORY: dict[str, Callable[[MemoryRow], float]] = {
    "peak memory, x of the shortest": lambda row: row.growth,
    "prompt tokens per second": lambda row: row.tokens_per_s,
}


def plot_speed(path: Path, documents: Sequence[dict[str, Any]]) -> None:
    """Records of decode or prefill, a panel each: seconds over tokens, a line per arm, and the machine's floor."""
    figure = new_figure(5 * len(documents), 4)
    for axis, document in zip(figure.subplots(1, len(documents), squeeze=False)[0], documents, strict=True):
        for arm in dict.fromkeys(record["arm"] for record in document["records"]):
            line = [record for record in document["records"] if record["arm"] == arm]
            lengths, medians, spread = ([each[name] for each in line] for name in ("length", "median_s", "spread_s"))
            label = arm if arm == STOCK else f"Winnow, {arm}"
            axis.errorbar(lengths, medians, spread, marker="o", capsize=3, label=label)
            if arm == STOCK:
                axis.plot(lengths, [each["floor_s"] for each in line], "k:", label="floor of this machine")
        _seconds(axis, "seconds")
        _tokens(axis, "tokens", lengths)
        axis.set_title(f"{document['shape']}, {document['what']}")
        axis.legend()
    save(figure, path)


def plot_memory(path: Path, rows: Sequence[MemoryRow]) -> None:
    """Growth of the peak memory and prompt tokens per second against the length, a line per plan."""
    figure = new_figure(10, 4)
    for axis, (label, value) in zip(figure.subplots(1, 2), MEMORY.items(), strict=True):
        for index, plan in enumerate(dict.fromkeys(row.plan for row in rows)):
            line = [row for row in rows if row.plan == plan]
            color, marker = GREY if plan == FULL else f"C{index}", MARKERS[index % len(MARKERS)]
            axis.plot(
                [row.length for row in line], [value(row) for row in line], color=color, marker=marker, label=plan
            )
        _tokens(axis, "prompt tokens", (row.length for row in rows))
        axis.set(ylabel=label, ylim=(0, 1.1 * max(value(row) for row in rows)))
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", frameon=False)
    figure.suptitle(memory_claim(rows), x=0.01, ha="left", fontweight="bold", fontsize=11)
    save(figure, path)


def memory_claim(rows: Sequence[MemoryRow]) -> str:
    """By how much the memory of the longest prompt exceeds the shortest's, under the plan where that is least."""
    longest = max(row.length for row in rows)
    best = min((row for row in rows if row.length == longest), key=lambda row: row.growth)
    shortest = min(row.length for row in rows if row.plan == best.plan)
    return f"{best.plan}: {longest:,} tokens take {best.growth:.3f}x the memory of {shortest:,}"


def plot_decoding(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """Seconds per token against the tokens cached, a line per arm and batch."""
    figure = new_figure(8, 5)
    axis = figure.subplots()
    for index, (plan, batch) in enumerate(dict.fromkeys((each["plan"], each["batch"]) for each in records)):
        line = [each for each in records if (each["plan"], each["batch"]) == (plan, batch)]
        name = plan + (f", {batch} sequences" if batch > 1 else "")
        lengths, seconds = [each["length"] for each in line], [each["tpot_s"] for each in line]
        axis.plot(lengths, seconds, color=f"C{index}", marker=MARKERS[index % len(MARKERS)], label=name)
    _seconds(axis, "seconds per token of a sequence")
    _tokens(axis, "tokens cached", (each["length"] for each in records))
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", frameon=False, fontsize=8)
    claim_title(axis, decoding_claim(records))
    save(figure, path)


def decoding_claim(records: Sequence[dict[str, Any]]) -> str:
    """What the fastest plan takes of full attention's time at the greatest length and the smallest batch."""
    longest, least = max(each["length"] for each in records), min(each["batch"] for each in records)
    here = [each for each in records if (each["length"], each["batch"]) == (longest, least)]
    rivals = [each for each in here if each["plan"] != FULL and each["ratio_to_full"] is not None]
    if not rivals:
        return f"Full attention after {longest:,} tokens"
    best = min(rivals, key=lambda each: float(each["ratio_to_full"]))
    name = best["plan"].partition("(")[0]
    return f"{name}: {best['ratio_to_full']:.2f}x full attention's time per token after {longest:,} tokens"


def _seconds(axis: "Axes", label: str) -> None:
    """Seconds on a logarithmic scale, with a mark at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import LogLocator

    axis.set(yscale="log", ylabel=label)
    axis.yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), major_formatter="{x:g}")


def _tokens(axis: "Axes", label: str, lengths: Iterable[int]) -> None:
    """Token counts on a logarithmic scale, with a mark at each that was measured."""
    ticks = sorted(set(lengths))
    axis.set(xscale="log", xlabel=label)
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.minorticks_off()
    plain(axis)
