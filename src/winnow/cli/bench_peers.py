"""`winnow bench peers`: one decode step after many cached tokens, plans and peers."""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
import typer
from rich.console import Group, RenderableType
from rich.table import Table
from transformers.utils import logging as transformers_logging

from winnow.bench.__main__ import DTYPES, Dtype, Threads, Warmup, machine
from winnow.bench.compare import with_full
from winnow.bench.decode import CHUNK
from winnow.bench.peers.base import Arm
from winnow.bench.peers.registry import plan_arms
from winnow.bench.peers.steps import Turn, check_steps, measure_steps, summarise_steps
from winnow.bench.peers.summary import FULL, best
from winnow.bench.peers.weights import weights_of
from winnow.bench.shapes import SHAPES, random_model, shape_named
from winnow.cli import options
from winnow.cli.bench_view import MIB, PLAN_COLUMNS, Found, deliver
from winnow.cli.compare_peers import Peers, Pythons, Typed
from winnow.cli.inputs import check_outputs, load_model, parse_plans, refuse
from winnow.cli.terminal import Meter, interruptible, new_table, say
from winnow.errors import CapacityError, InputError
from winnow.runtime.llm import LLM
from winnow.runtime.loading import WEIGHTS

SHAPE = "qwen3-0.6b"

Shape = Annotated[
    str | None, typer.Option(help=f"One of {', '.join(SHAPES)}, with random weights.  [default: {SHAPE}]")
]
Model = Annotated[str | None, typer.Option("--model", "-m", metavar="MODEL", help="A model's weights instead.")]
Length = Annotated[int, typer.Option("--length", "-l", metavar="TOKENS", min=2, help="Tokens cached before.")]
Repeats = Annotated[int, typer.Option(min=5, help="Timed steps of each arm in a turn.")]
Also = Annotated[
    list[str] | None,  # typer takes no list of choices
    typer.Option(
        "--weights", metavar="|".join(WEIGHTS), help="Every plan again, with weights held like this; repeatable."
    ),
]
Turns = Annotated[int, typer.Option(min=1, help="How many times every arm is started anew, one after another.")]


def peers(
    plan: options.Plans = None,
    peer: Peers = None,
    peer_python: Pythons = None,
    shape: Shape = None,
    model: Model = None,
    length: Length = 32768,
    dtype: Dtype = "bfloat16",
    weights: Also = None,
    threads: Threads = None,
    repeats: Repeats = 5,
    warmup: Warmup = 2,
    turns: Turns = 2,
    as_json: options.Json = False,
    out: options.Out = None,
) -> None:
    """TPOT and cache bytes after many cached tokens: plans beside peers, the same weights and random units.

    Every arm runs in a process of its own, one at a time, on the CPU.
    """
    also = [kind for kind in WEIGHTS if kind in (weights or ())]
    if unknown := sorted({*(weights or ())} - {*WEIGHTS}):
        raise InputError(f"--weights {unknown[0]!r} is unknown; use {', '.join(WEIGHTS)}")
    if not peer and not weights:
        raise InputError("neither --peer nor --weights is given; `winnow bench decode` measures plans alone")
    if model is not None:
        refuse("is about random weights, not about --model", {"--shape": shape})
    plans, typed, name = with_full(parse_plans(plan)), Typed(peer or (), peer_python or ()), model or shape or SHAPE
    sizes = None if model else shape_named(name)
    typed.arms()
    check_outputs(out, None)
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is unknown; known: {', '.join(DTYPES)}")
    if sizes is not None:  # before weights are drawn
        _check_room(length + warmup + repeats + 2, sizes.config().max_position_embeddings)
    transformers_logging.disable_progress_bar()
    if threads is not None:
        torch.set_num_threads(threads)
    typed.check("cpu", threads)
    if sizes is None:
        llm = load_model(name, "cpu", dtype, threads, CHUNK)
    else:
        llm = LLM(random_model(sizes, DTYPES[dtype], torch.device("cpu")))
    _check_room(length + warmup + repeats + 2, llm.decoder.shape.max_positions)
    check_steps(llm, plans)
    found, others, layout = list[Turn](), typed.arms(llm), llm.decoder.shape
    again = [arm for kind in also for arm in plan_arms(plans, CHUNK, kind, f", {kind}")]
    arms = [*plan_arms(plans, CHUNK), *again, *others]
    with weights_of(llm, arms, say) as files, Meter("decoding", turns * len(arms)) as meter, interruptible():
        del llm  # one arm's weights and cache are in memory at a time
        for turn in measure_steps(
            files, arms, layout, length, repeats=repeats, warmup=warmup, turns=turns,
            progress=lambda: meter.advance(1),
        ):  # fmt: skip
            found.append(turn)
            meter.note(f"{turn.arm}: done")
    records = summarise_steps(found, [FULL, *(arm.label for arm in others)])
    figures = {"shape": name, "length": length, "repeats": repeats, "warmup": warmup, "turns": turns}
    about = {"dtype": dtype, "machine": machine(torch.device("cpu"))}
    title = f"{name}, {dtype}, one decode step after {length:,} cached tokens, {torch.get_num_threads()} threads"
    complete = len(found) == turns * len(arms)
    shown = _shown(records, others, title)
    deliver(Found("peers", complete, {**figures, "records": records}, shown, None), about, as_json, out, None)


def _check_room(needed: int, most: int) -> None:
    if needed > most:
        raise CapacityError(f"--length and the steps after it are {needed:,} tokens, more than the {most:,} positions")


def _shown(records: Sequence[dict[str, Any]], peers: Sequence[Arm], title: str) -> RenderableType:
    """The table, with a column of ratios to full and to the best of each family, and a line on what that is."""
    means = {record["arm"]: record["mean_s"] for record in records}
    families: dict[str, dict[str, float]] = {}
    for arm in peers:
        if arm.label in means:
            families.setdefault(arm.family, {})[arm.label] = means[arm.label]
    chosen = {family: best(values) for family, values in families.items()}
    lines = [
        f"{family} at its best: {each.arm}, {1000 * each.value:.4g} ms"
        for family, each in chosen.items()
        if len(families[family]) > 1
    ]
    return Group(_table(records, [FULL, *(each.arm for each in chosen.values())], title), *lines)


def _table(records: Sequence[dict[str, Any]], beside: Sequence[str], title: str) -> Table:
    caption = "TPOT: mean, x: of the other arm's; step: median ± half the interquartile range; off: the largest "
    table = new_table(title, caption + "difference of the first step's logits from full's, which drops no unit")
    table.add_column("arm", overflow="fold", min_width=PLAN_COLUMNS)
    table.add_column("TPOT\nms", justify="right")
    table.add_column("step\nms", justify="right")
    for other in beside:
        table.add_column(f"of\n{other}\nx", justify="right", overflow="fold")
    for heading in ("cache\nMiB", "units\nkept", "off"):
        table.add_column(heading, justify="right")
    for record in records:
        kept = record["kept_units"]
        table.add_row(
            record["arm"],
            f"{1000 * record['mean_s']:.4g}",
            f"{1000 * record['median_s']:.4g} ± {1000 * record['spread_s']:.2g}",
            *(f"{record['ratios'][other]:.3f}" if other in record["ratios"] else "-" for other in beside),
            f"{record['cache_bytes'] / MIB:,.1f}",
            "-" if kept is None else f"{kept:,}",
            "-" if record["off"] is None else f"{record['off']:.3f}",
        )
    return table
