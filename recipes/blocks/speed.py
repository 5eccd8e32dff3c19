"""Figures of docs/results/speed.md, and what the README says of them."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from .tables import Block, Column, Columns, Record, code, mib, milliseconds, number, one, percent, scored, table

LAYERS = 8  # of needle
TRAININGS = {"post hoc": "not trained", "lora": "LoRA", "full": "all parameters"}
ANCHORS = {"bos": "first token", "none": "no anchor"}
GENERATION: Columns = {
    "plan": code("plan"),
    "rows, %": lambda row: f"{100 * row['stats']['rows_computed'] / row['stats']['rows_full']:.1f}",
    "TTFT, s": number("ttft_s", 2),
    "of full": number("ttft_ratio", 3),
    "decode step, ms": milliseconds("step_s"),
    "step of full": number("step_ratio", 3),
    "units held, MiB": lambda row: mib("cache_bytes", 1)(row["stats"]),
    "units of full": number("cache_ratio", 4),
}


def markdown(records: list[Record]) -> str:
    """Two tables: the mean over tasks by cutoff, and every arm by task."""
    cutoffs = sorted({record["cutoff"] for record in records})
    columns: dict[str, Column] = {
        "training": lambda line: TRAININGS[line["training"]],
        "anchors": lambda line: ANCHORS[line["anchors"]],
    }
    columns |= {f"K = {cutoff}": _mean(cutoff) for cutoff in cutoffs}
    lines = [
        {"training": training, "anchors": anchors}
        | {str(r["cutoff"]): r["mean"] for r in records if r["training"] == training and anchored(r, anchors)}
        for training, anchors in groups(records)
    ]
    return f"{table(columns, lines)}\n\n{table(_by_task(records[0]), records)}\n"


def _mean(cutoff: int) -> Column:
    return lambda line: f"{100 * line[str(cutoff)]:.1f}" if str(cutoff) in line else ""


def _by_task(record: Record) -> Columns:
    return {
        "training": lambda record: TRAININGS[record["training"]],
        "anchors": lambda record: ANCHORS[record["anchors"]] if record["cutoff"] < LAYERS else "-",
        "K": lambda record: str(record["cutoff"]),
        "rows, %": lambda record: f"{100 * record['rows_computed'] / record['rows_full']:.1f}",
        **{each["task"]: _score(each["task"]) for each in record["accuracy"]},
        "mean, %": percent("mean"),
        "loops, %": percent("loop_rate"),
    }


def _score(task: str) -> Column:
    return lambda record: percent("score")(one(record["accuracy"], task=task))


def groups(records: list[Record]) -> Iterable[tuple[str, str]]:
    """Ways of training and anchors, in the order of the records."""
    return dict.fromkeys((r["training"], r["anchors"]) for r in records if r["cutoff"] < LAYERS)


def anchored(record: Record, anchors: str) -> bool:
    """Full depth has no cutoff, so it ends the lines of all anchors."""
    return record["cutoff"] == LAYERS or record["anchors"] == anchors


def training(records: list[Record]) -> str:
    """What all trained arms have seen."""
    [data] = {tuple(each["trained"]["data"].items()) for each in records if each["trained"]}
    [steps] = {each["trained"]["result"]["steps"] for each in records if each["trained"]}
    said = dict(data)
    return (
        f"Mean over the tasks, {records[0]['examples']} examples each. All trained arms saw the same "
        f"{said['conversations']} conversations ({said['tokens']:,} tokens, {said['supervised']:,} of them learned) "
        f"once, in the same order, in {steps} steps; K = {LAYERS} is the full-depth arm of the same recipe."
    )


def accuracy(arms: list[Record]) -> str:
    """An arm per row, a task per column, with intervals."""
    columns: dict[str, Column] = {"arm": lambda arm: arm["arm"]}
    for each in arms[0]["accuracy"]:
        columns[each["task"]] = _interval(each["task"])
    return table(columns | {"mean, %": _mean_of("score"), "loops, %": _mean_of("loop_rate")}, arms)


def _interval(task: str) -> Column:
    return lambda arm: scored(one(arm["accuracy"], task=task))


def mean(arm: Record, name: str) -> float:
    """Over the tasks, 0 .. 100."""
    return 100 * sum(each[name] for each in arm["accuracy"]) / len(arm["accuracy"])


def _mean_of(name: str) -> Column:
    return lambda arm: f"{mean(arm, name):.1f}"


def ablations(arms: list[Record]) -> str:
    """Plans of `needle` as it is, by their cutoff."""
    columns: dict[str, Column] = {"plan": code("plan")}
    columns |= {each["task"]: _score(each["task"]) for each in arms[0]["accuracy"]}
    return table(columns | {"mean, %": _mean_of("score"), "loops, %": _mean_of("loop_rate")}, arms)


def generation(document: Record) -> str:
    """The table, and how the bytes held compare with the closed formula."""
    records = document["records"]
    held = records[0]["stats"]["cache_bytes"]
    rows = [each | {"cache_ratio": each["stats"]["cache_bytes"] / held} for each in records]
    return f"{table(GENERATION, rows)}\n\n{_formula(rows)}"


def _formula(rows: list[Record]) -> str:
    """For a prompt with one anchor and one token of the header, as that of the random model is."""
    full, speed = rows[0]["stats"], next(row for row in rows if row["plan"].startswith("speed("))
    decoded = full["new_tokens"] - 1
    layers = full["rows_full"] // (full["prompt_tokens"] + decoded)
    cutoff, stopped, deep = int(speed["plan"][len("speed(cutoff=") : -1]), full["prompt_tokens"] - 2, 2 + decoded
    expected = (cutoff * stopped + layers * deep) / (layers * (stopped + deep))
    return (
        f"The formula for the cache, `K N + L (a + m + t)` over `L (N + a + m + t)` with N = {stopped:,}, one anchor, "
        f"one header token and {decoded} decoded, gives {expected:.6f}; counted: {speed['cache_ratio']:.6f}."
    )


def rate(document: Record) -> str:
    """Tokens per second while training, by cutoff, the deepest first."""
    medians = {int(cutoff): median(rates) for cutoff, rates in document["tokens_per_second"].items()}
    columns: Columns = {
        "K": lambda row: str(row["cutoff"]),
        "tokens/s": lambda row: f"{row['rate']:,.0f}",
        "of full depth": lambda row: f"{row['rate'] / medians[LAYERS]:.2f}x",
    }
    return table(columns, [{"cutoff": cutoff, "rate": medians[cutoff]} for cutoff in sorted(medians, reverse=True)])


BLOCKS = {
    "speed-sweep": Block(markdown, ("speed-sweep.json",)),
    "speed-sweep-training": Block(training, ("speed-sweep.json",)),
    "speed-accuracy": Block(accuracy, ("speed-accuracy.json",)),
    "speed-ablations": Block(ablations, ("speed-ablations.json",)),
    "speed-generation": Block(generation, ("speed-generation.json",)),
    "speed-training": Block(rate, ("speed-training.json",)),
}
