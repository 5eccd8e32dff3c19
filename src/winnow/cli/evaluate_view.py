"""How scores and fidelity look."""

import math
import statistics
from collections.abc import Sequence

from rich.table import Table

from winnow.cli.tables import Column, table_of
from winnow.evaluation.accuracy import Accuracy
from winnow.evaluation.fidelity import Fidelity
from winnow.evaluation.published import DatasetScore

LOOPS: Column[Accuracy] = Column("loops\n%", lambda each: 100 * each.loop_rate, ".0f")
ACCURACY: list[Column[Accuracy]] = [
    Column("tokens", lambda each: each.length, ","),
    Column("score\n%", lambda each: 100 * each.score, ".1f"),
    Column("95 %", lambda each: f"{100 * each.low:.0f} to {100 * each.high:.0f}"),
    Column("n", lambda each: each.examples),
]
ACCURACY_NOTE = "interval: of Wilson; n: examples; by depth: needles found there, %"
FIDELITY: list[Column[Fidelity]] = [
    Column("prompt", lambda each: each.prompt_tokens, ","),
    Column("fed", lambda each: each.tokens, ","),
    Column("KL\nnats", lambda each: each.kl, ".5f"),
    Column("top-1\n%", lambda each: 100 * each.top1, ".1f"),
    Column("NLL\nfull", lambda each: each.nll_full, ".4f"),
    Column("NLL\nplan", lambda each: each.nll_plan, ".4f"),
    Column("perplexity\nfull", lambda each: math.exp(each.nll_full), ".3f"),
    Column("perplexity\nplan", lambda each: math.exp(each.nll_plan), ".3f"),
]


def accuracy_table(accuracies: Sequence[Accuracy], depths: Sequence[float]) -> Table:
    """A row per plan, task and length; a column of loops where there are any."""
    loops = any(each.loop_rate for each in accuracies)
    return table_of(
        accuracies,
        {"plan": lambda each: each.plan, "task": lambda each: each.task},
        [*ACCURACY, *([LOOPS] if loops else []), *map(_found_at, sorted(depths))],
        note=ACCURACY_NOTE if loops else f"{ACCURACY_NOTE}; no answer loops",
    )


def _found_at(depth: float) -> Column[Accuracy]:
    def found(each: Accuracy) -> float | None:
        return next((100 * point.found for point in each.by_depth if point.depth == depth), None)

    return Column(f"depth\n{depth:g}", found, ".0f")


def fidelity_table(found: Sequence[Fidelity]) -> Table:
    """A row per plan."""
    return table_of(found, {"plan": lambda each: each.plan}, FIDELITY, note="means over the fed tokens")


def benchmark_table(scores: Sequence[DatasetScore]) -> Table:
    """A row per dataset, a column per plan; the last row is the mean over datasets."""
    rows: dict[str, dict[str, DatasetScore]] = {}
    for score in scores:
        rows.setdefault(score.dataset, {})[score.plan] = score
    plans = list(dict.fromkeys(score.plan for score in scores))

    def of_plan(plan: str) -> Column[str]:
        return Column(plan, lambda dataset: 100 * rows[dataset][plan].score, ".2f")

    columns: list[Column[str]] = [
        Column("n", lambda dataset: rows[dataset][plans[0]].examples),
        Column("cut", lambda dataset: rows[dataset][plans[0]].cut),
        *map(of_plan, plans),
    ]
    note = "score, %; n: questions; cut: prompts that lost their middle; average: over datasets"
    table = table_of(rows, {"dataset": str}, columns, note=note)
    if len(rows) > 1:
        means = (100 * statistics.fmean(row[plan].score for row in rows.values()) for plan in plans)
        table.add_row("average", "", "", *(f"{mean:.2f}" for mean in means))
    return table
