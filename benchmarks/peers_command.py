"""`python -m benchmarks peers`: one decode step after many cached tokens, plans and peers."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.table import Table

from benchmarks.commands.models import Peers
from benchmarks.options import CHUNK, SHAPE
from benchmarks.peers_steps import measure_steps, summarise_steps
from benchmarks.record import Record, about
from benchmarks.source import Source, load_checked
from benchmarks.tables import MIB, PLAN_COLUMNS
from winnow.cli.compare_peers import Typed
from winnow.cli.deliver import deliver
from winnow.cli.inputs import parse_plans, refuse
from winnow.cli.terminal import collect, new_table, say
from winnow.errors import InputError
from winnow.evaluation.compare import with_full
from winnow.evaluation.peers.base import Arm
from winnow.evaluation.peers.registry import plan_arms
from winnow.evaluation.peers.summary import FULL, best
from winnow.evaluation.peers.weights import weights_of


def peers(options: Peers) -> int:
    """Time steps of plans and peers; returns the exit code."""
    if not options.peer and not options.weights:
        raise InputError("neither --peer nor --weights is given; `python -m benchmarks decode` measures plans alone")
    if options.model is not None:
        refuse("is about random weights, not about --model", {"--shape": options.shape})
    plans, typed = with_full(parse_plans(options.plan)), Typed(options.peer, options.peer_python)
    typed.check("cpu", options.threads)
    name = options.model or options.shape or SHAPE
    held = options.of_model(model=options.model, device="cpu", prefill_chunk=CHUNK)
    source = Source(held, None if options.model else name)
    llm = load_checked(source, plans, options.length + options.warmup + options.repeats + 2)
    counts: dict[str, Any] = {"repeats": options.repeats, "warmup": options.warmup, "turns": options.turns}
    layout, settings, others = llm.decoder.shape, about(llm, name), typed.arms(llm)
    again = [arm for kind in dict.fromkeys(options.weights) for arm in plan_arms(plans, CHUNK, kind, f", {kind}")]
    arms = [*plan_arms(plans, CHUNK), *again, *others]
    total = options.turns * len(arms)
    with weights_of(llm, arms, say) as files:
        del llm  # one arm's weights and cache are in memory at a time
        measure = partial(measure_steps, files, arms, layout, options.length, **counts)
        found = collect("decoding", total, f"{total} turns", measure)
    records = summarise_steps(found, [FULL, *(arm.label for arm in others)])
    figures = {"shape": name, "length": options.length, **counts, "records": records}
    after = f"one decode step after {options.length:,} cached tokens, {torch.get_num_threads()} threads"
    shown = _shown(records, others, f"{name}, {options.dtype}, {after}")
    return deliver(Record("peers", figures, shown, complete=len(found) == total, about=settings), options)


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
