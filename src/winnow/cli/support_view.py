"""How the steadiness of attention's support looks."""

import statistics
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from winnow.cli.terminal import new_table
from winnow.diagnosis.support_figures import Age, Heads, LayerSupport, Support
from winnow.plan import Plan

CAPTION = (
    "mean over KV heads, %, and the least head's in brackets. overlap: of the {budget:,} most attended units, those "
    "that were among the step before's; recall: of the attention, what falls on the first units, the last selection "
    "and the recent units; best: what falls on the most attended units, as many of them; inside sentences, and at "
    "boundaries: steps that feed the first token of a sentence"
)
DISTANCES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
COLUMNS = ("overlap_inside", "overlap_boundary", "recall_inside", "recall_boundary", "best")


def support_view(found: Support, model: str) -> RenderableType:
    """A table of layers, and one of steps since the last refresh."""
    caption = CAPTION.format(budget=found.policy.budget)
    return Group(headline(found, model), "", support_table(found.layers), caption, "", age_table(found.ages))


def headline(found: Support, model: str) -> str:
    """What was measured, and by what selection."""
    return (
        f"{model}: {found.prompts} prompts, {found.steps:,} decode steps, {found.boundaries:,} of them at boundaries, "
        f"full attention; {found.slow:,} slow steps of {Plan(read=found.policy)}"
    )


def support_table(layers: Sequence[LayerSupport]) -> Table:
    """A row per layer, and their mean."""
    table = new_table(None)
    for heading in ("layer", "overlap\ninside", "\nboundary", "recall\ninside", "\nboundary", "\nbest"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in layers:
        cells = (_cell(getattr(each, column)) for column in COLUMNS)
        table.add_row(str(each.layer), *cells, end_section=each is layers[-1])
    table.add_row("all", *(percent(mean(head for each in layers for head in getattr(each, c))) for c in COLUMNS))
    return table


def age_table(ages: Sequence[Age]) -> Table:
    """A row per distance from the last refresh, of some distances."""
    table = new_table(None)
    for heading in ("steps since\nthe refresh", "overlap\nwith it", "recall", "best", "counted"):
        table.add_column(heading, justify="right", no_wrap=True)
    for age in ages:
        if age.distance in DISTANCES or age is ages[-1]:
            figures = (age.overlap, age.recall, age.best)
            shares = (mean(head for heads in each for head in heads) for each in figures)
            table.add_row(str(age.distance), *map(percent, shares), f"{max(age.counted):,}")
    return table


def mean(figures: Iterable[float | None]) -> float | None:
    """Of the figures that there are."""
    known = [figure for figure in figures if figure is not None]
    return statistics.fmean(known) if known else None


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _cell(heads: Heads) -> str:
    known = [head for head in heads if head is not None]
    return f"{percent(mean(known))} ({percent(min(known))})" if known else "-"
