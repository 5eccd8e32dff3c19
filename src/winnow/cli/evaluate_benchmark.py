"""`winnow eval --benchmark`: a published benchmark under plans, a row per dataset as in its paper's table."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from winnow.bench.benchmarks import DatasetScore, dataset_scores, evaluate_benchmark
from winnow.bench.compare import finished
from winnow.bench.evaluate import Record
from winnow.cli.terminal import Meter, interruptible, new_table
from winnow.errors import InputError
from winnow.plan import Plan
from winnow.runtime.llm import LLM
from winnow.tasks.benchmarks import BENCHMARKS, Question, questions

Name = Annotated[
    str | None,
    typer.Option(
        "--benchmark",
        metavar="NAME",
        help=f"Instead of tasks: {', '.join(BENCHMARKS)}, from its files in --data DIR; --task is a dataset of it.",
    ),
]


def read_benchmark(
    name: str, data: Path | None, datasets: Sequence[str], lengths: Sequence[int], examples: int | None
) -> list[Question]:
    """The questions asked for: of every dataset the first `examples`, or all."""
    if name not in BENCHMARKS:
        raise InputError(f"no benchmark is called {name!r}; there are {', '.join(BENCHMARKS)}")
    if data is None:
        raise InputError(f"--benchmark {name} reads its published files; give their directory with --data DIR")
    if len(lengths) > 1:
        raise InputError("--benchmark takes one --length: the most prompt tokens, past which a prompt loses its middle")
    asked = questions(name, data, datasets)
    groups = itertools.groupby(asked, key=lambda question: question.dataset)
    return [question for _, group in groups for question in itertools.islice(group, examples)]


def run_benchmark(
    llm: LLM, plans: Sequence[Plan], asked: Sequence[Question], length: int | None
) -> tuple[bool, dict[str, Any], Table]:
    """Whether it was finished, its figures for JSON, and the table; `length` as in `evaluate_benchmark`."""
    records: list[Record] = []
    answers = len(plans) * len(asked)
    with Meter("evaluating", answers) as meter, interruptible():
        for record in evaluate_benchmark(llm, plans, asked, length=length):
            records.append(record)
            meter.advance(1)
            meter.note(f"{len(records)} of {answers} answers")
    scores = dataset_scores(finished(records, len(plans)))
    figures = {"scores": [score.to_dict() for score in scores], "records": [record.to_dict() for record in records]}
    return len(records) == answers, figures, benchmark_table(scores)


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
