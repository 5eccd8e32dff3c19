"""`python -m benchmarks arrival`: a long prompt that arrives while others decode."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.table import Table

from benchmarks.arrival import ALONE, ArrivalRow, Arrived, Setting, measure_arrival, summarise_arrival, undisturbed_s
from benchmarks.commands.engine import Arrival
from benchmarks.document import document_ids, pieces
from benchmarks.draw import claim_title
from benchmarks.record import Record, about
from benchmarks.source import Source, load_checked
from winnow import Plan
from winnow.cli.deliver import deliver
from winnow.cli.draw import GREY, new_figure, plain, save
from winnow.cli.terminal import Meter, interruptible, new_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def arrival(options: Arrival) -> int:
    """Time arrivals; returns the exit code."""
    llm = load_checked(Source(options), [Plan()], options.length + 1)
    ids = document_ids(llm, options.text, options.length + options.running)
    newcomer, prompts = ids[: options.length], pieces(ids, options.sequences, options.running)
    arrived: list[Arrived] = []
    with Meter("arrivals") as meter, interruptible():
        gap = undisturbed_s(llm, prompts)
        paced = Setting(max_step_s=options.slower * gap)
        limits = [Setting(max_step_tokens=each) for each in dict.fromkeys(options.max_step_tokens)]
        turns = [(paced, options.repeats), (Setting(), options.repeats)]
        turns += [(each, options.curve_repeats) for each in limits]
        total = sum(count for _, count in turns)
        meter.advance(0, total)
        for each in measure_arrival(llm, turns, prompts, newcomer, patience_s=options.patience, progress=meter.advance):
            arrived.append(each)
            meter.note(f"{len(arrived)} of {total} arrivals: {each.setting}")
    whole = {each.setting for each in arrived} > {ALONE}
    rows, name = summarise_arrival(arrived, options.length) if whole else [], options.model_name
    settings = {name: getattr(options, name) for name in ("length", "sequences", "running", "slower", "patience")}
    figures = {
        **settings,
        "alone_s": [each.ttft_s for each in arrived if each.setting == ALONE],
        "summary": [asdict(row) for row in rows],
        "records": [asdict(each) for each in arrived],
    }
    title = f"{name}: {options.length:,} tokens arrive, {options.sequences} decode, {torch.get_num_threads()} threads"
    shown = _table(rows, title) if rows else "no arrival was finished"
    draw = partial(plot_arrival, rows=rows) if rows else None
    complete = whole and len(arrived) == total
    return deliver(Record("arrival", figures, shown, draw, complete, about(llm, name)), options)


COLUMNS: dict[str, Callable[[ArrivalRow], str]] = {
    "turns": lambda row: str(row.turns),
    "gap\nms": lambda row: f"{1000 * row.undisturbed_s:.1f}",
    "longest\nx": lambda row: f"{row.longest:.2f}",
    "worst\nx": lambda row: f"{row.worst:.2f}",
    "typical\nx": lambda row: f"{row.typical:.2f}",
    "TTFT\ns": lambda row: "-" if row.ttft_s is None else f"{row.ttft_s:.2f}",
    "of alone\nx": lambda row: "-" if row.of_alone is None else f"{row.of_alone:.2f}",
    "computed\n%": lambda row: f"{100 * row.computed:.0f}",
}
CAPTION = (
    "gap: undisturbed, the median; longest, typical: the longest and the median gap of an arrival over it, medians of "
    "the turns; worst: the longest of all; TTFT: of the prompt that arrives, and over its own alone, - where it was "
    "given up; computed: of its tokens"
)


def _table(rows: Sequence[ArrivalRow], title: str) -> Table:
    table = new_table(title, CAPTION)
    table.add_column("engine", no_wrap=True)
    for heading in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.setting, *(show(row) for show in COLUMNS.values()))
    return table


def plot_arrival(path: Path, rows: Sequence[ArrivalRow]) -> None:
    """Median gaps, with a line up to the longest, against the time to first token: a point for every limit in tokens, a
    star for that in seconds, or a line across where its prompt was given up."""
    paced, limits = rows[0], [row for row in rows[1:] if row.of_alone is not None]
    figure = new_figure(7, 4.2)
    axis = figure.subplots()
    axis.plot([row.of_alone for row in limits], [row.typical for row in limits], color="C0", marker="o", ms=5)
    for row in limits:
        _named(axis, row, "C0", GREY)
    claim = f"{paced.setting}: gaps of {paced.typical:.1f}x, at most {paced.longest:.1f}x, TTFT "
    if paced.of_alone is None:
        axis.axhline(paced.typical, color="C1", lw=1)
        claim += "given up"
    else:
        axis.plot([paced.of_alone], [paced.typical], color="C1", marker="*", ms=13, ls="")
        _named(axis, paced, "C1", "C1")
        claim += f"{paced.of_alone:.1f}x"
    axis.set(xlabel="TTFT of the newcomer, of its own alone", ylabel="gap, of the undisturbed", ylim=(0, None))
    axis.margins(x=0.25)
    plain(axis)
    claim_title(axis, claim)
    save(figure, path)


def _named(axis: "Axes", row: ArrivalRow, line: str, color: str) -> None:
    axis.plot([row.of_alone] * 2, [row.typical, row.longest], color=line, lw=0.8)
    place = (row.of_alone, row.typical)
    axis.annotate(row.setting, place, (7, 5), textcoords="offset points", color=color, fontsize=9)
