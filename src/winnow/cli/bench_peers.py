"""`winnow bench peers`: one decode step after many cached tokens, plans and peers."""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
import typer
from rich.table import Table
from transformers.utils import logging as transformers_logging

from winnow.bench.__main__ import DTYPES, Dtype, ShapeName, Threads, Warmup, machine
from winnow.bench.compare import with_full
from winnow.bench.peers.registry import parse_pythons, peer_arms
from winnow.bench.peers.steps import Turn, measure_steps, summarise_steps
from winnow.bench.peers.summary import FULL
from winnow.bench.shapes import shape_named
from winnow.cli import options
from winnow.cli.bench_view import MIB, PLAN_COLUMNS, Found, deliver
from winnow.cli.compare_peers import Peers, Pythons
from winnow.cli.inputs import check_outputs, parse_plans
from winnow.cli.terminal import Meter, interruptible, new_table
from winnow.errors import CapacityError, InputError

Length = Annotated[int, typer.Option("--length", "-l", metavar="TOKENS", min=2, help="Tokens cached before.")]
Repeats = Annotated[int, typer.Option(min=5, help="Timed steps of each arm in a turn.")]
Turns = Annotated[int, typer.Option(min=1, help="How many times every arm is started anew, one after another.")]


def peers(
    plan: options.Plans = None,
    peer: Peers = None,
    peer_python: Pythons = None,
    shape: ShapeName = "qwen3-0.6b",
    length: Length = 32768,
    dtype: Dtype = "bfloat16",
    threads: Threads = None,
    repeats: Repeats = 5,
    warmup: Warmup = 2,
    turns: Turns = 2,
    as_json: options.Json = False,
    out: options.Out = None,
) -> None:
    """TPOT and cache bytes after many cached tokens: plans beside peers, the same random weights and units.

    Every arm runs in a process of its own, one at a time, on the CPU.
    """
    if not peer:
        raise InputError("no --peer is given; give at least one, or use `winnow bench decode` for plans alone")
    plans, sizes = with_full(parse_plans(plan)), shape_named(shape)
    arms = peer_arms(peer, parse_pythons(peer_python or []))
    check_outputs(out, None)
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is unknown; known: {', '.join(DTYPES)}")
    if length + warmup + repeats + 2 > (most := sizes.config().max_position_embeddings):
        raise CapacityError(f"--length {length} and the steps after it are more than the shape's {most} positions")
    transformers_logging.disable_progress_bar()
    if threads is not None:
        torch.set_num_threads(threads)
    names, found = [*map(str, plans), *(arm.label for arm in arms)], list[Turn]()
    with Meter("decoding", turns * len(names)) as meter, interruptible():
        for turn in measure_steps(
            sizes, plans, arms, length, dtype=DTYPES[dtype], threads=torch.get_num_threads(), repeats=repeats,
            warmup=warmup, turns=turns, progress=lambda: meter.advance(1),
        ):  # fmt: skip
            found.append(turn)
            meter.note(f"{turn.arm}: done")
    beside = [FULL, *(arm.label for arm in arms)]
    records = summarise_steps(found, beside)
    figures = {"shape": shape, "length": length, "repeats": repeats, "warmup": warmup, "turns": turns}
    about = {"dtype": dtype, "machine": machine(torch.device("cpu"))}
    title = f"{shape}, {dtype}, one decode step after {length:,} cached tokens, {torch.get_num_threads()} threads"
    complete = len(found) == turns * len(names)
    shown = _table(records, beside, title)
    deliver(Found("peers", complete, {**figures, "records": records}, shown, None), about, as_json, out, None)


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
