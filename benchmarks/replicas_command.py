"""`python -m benchmarks replicas`: what clients of several replicas notice when one goes away."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec

import torch
from rich.table import Table

from benchmarks.commands.engine import Replicas
from benchmarks.machine import machine
from benchmarks.record import Record
from benchmarks.replicas import ReplicasRow, measure_replicas, nodes, processes
from winnow.cli.deliver import deliver, travelling
from winnow.cli.inputs import parse_plan
from winnow.cli.options import default_model
from winnow.cli.terminal import Meter, interruptible, new_table
from winnow.errors import MissingExtraError


def replicas(options: Replicas) -> int:
    """Follow streams while replicas go away; returns the exit code."""
    plan, threads, model = str(parse_plan(options.plan)), options.threads, options.model or default_model()
    if options.ray and find_spec("ray") is None:
        raise MissingExtraError("--ray needs ray; install winnow with its extra 'ray'")
    if options.ray:
        settings = {"max_sequences": options.streams}
        arm = nodes({"model": model, "threads": threads, "settings": settings})
    else:
        typed = [model, "--threads", str(threads), "--max-sequences", str(options.streams)]
        arm = processes(typed, 2)
    rows: list[ReplicasRow] = []
    with Meter("events", 3 if options.ray else 2) as meter, interruptible(), arm as cluster:
        for row in measure_replicas(cluster, options.streams, options.new, plan):
            rows.append(row)
            meter.advance(1)
    settings = {"streams": options.streams, "new": options.new, "plan": plan, "ray": options.ray}
    figures = {**settings, "summary": [asdict(row) for row in rows]}
    where = "two nodes of Ray" if options.ray else "two processes"
    shown = _table(rows, f"{model} under {plan}: {options.streams} streams of {where}")
    complete = len(rows) == (3 if options.ray else 2)
    about = {"model": travelling(model), "threads": threads, "machine": machine(torch.device("cpu"))}
    return deliver(Record("replicas", figures, shown, complete=complete, about=about), options)


COLUMNS: dict[str, Callable[[ReplicasRow], str]] = {
    "what goes away": lambda row: row.event,
    "streams": lambda row: str(row.streams),
    "complete": lambda row: str(row.complete),
    "identical": lambda row: str(row.identical),
    "gone on\nelsewhere": lambda row: str(row.gone_on),
    "longest wait\ns": lambda row: f"{row.longest_s:.2f}",
    "median\ns": lambda row: f"{row.median_s:.2f}",
}
CAPTION = "identical: to the first row's; wait: each stream's longest between two pieces, the largest and the median"


def _table(rows: Sequence[ReplicasRow], title: str) -> Table:
    table = new_table(title, CAPTION)
    for heading in COLUMNS:
        table.add_column(heading)
    for row in rows:
        table.add_row(*(show(row) for show in COLUMNS.values()))
    return table
