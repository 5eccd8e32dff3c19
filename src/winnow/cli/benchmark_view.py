"""How a published benchmark looks under plans."""

from collections.abc import Sequence

from rich.table import Table

from winnow.cli.terminal import new_table
from winnow.evaluation.published import DatasetScore


def benchmark_table(scores: Sequence[DatasetScore]) -> Table:
    """A row per dataset, a column per plan; the last row is the mean over datasets."""
    table = new_table(None, "score, %; n: questions; cut: prompts that lost their middle; average: over datasets")
    plans = list(dict.fromkeys(score.plan for score in scores))
    table.add_column("dataset")
    for heading in ("n", "cut", *plans):
        table.add_column(heading, justify="right", overflow="fold")
    by_dataset: dict[str, list[DatasetScore]] = {}
    for score in scores:
        by_dataset.setdefault(score.dataset, []).append(score)
    for dataset, row in by_dataset.items():
        values = {score.plan: f"{100 * score.score:.2f}" for score in row}
        table.add_row(dataset, str(row[0].examples), str(row[0].cut), *(values[plan] for plan in plans))
    means = [[row.score for row in scores if row.plan == plan] for plan in plans]
    if len(by_dataset) > 1:
        table.add_row("average", "", "", *(f"{100 * sum(each) / len(each):.2f}" for each in means))
    return table
