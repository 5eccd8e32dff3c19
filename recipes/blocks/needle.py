"""Figures of docs/results/needle.md: accuracy by task, length and depth, a block for each of its commands."""

from __future__ import annotations

from functools import partial

from .tables import Block, Column, Record, code, interval, key, percent, table

RUNS = ("needle-4096", "needle-8192-text", "needle-8192-records", "needle-16384", "needle-streaming")  # of the file


def accuracy(runs: list[Record], place: int) -> str:
    """A run of `winnow eval`: a row per plan and task, a column per depth."""
    rows = runs[place]["accuracy"]
    columns: dict[str, Column] = {
        "plan": code("plan"), "task": key("task"), "tokens": lambda row: f"{row['length']:,}",
        "score, %": percent("score"), "95 %": interval, "n": key("examples"),
    }  # fmt: skip
    columns |= {f"depth {each['depth']:g}": _found(at) for at, each in enumerate(rows[0]["by_depth"])}
    return table(columns, rows)


def _found(place: int) -> Column:
    return lambda row: f"{100 * row['by_depth'][place]['found']:.0f}"


BLOCKS = {name: Block(partial(accuracy, place=place), ("needle.json",)) for place, name in enumerate(RUNS)}
