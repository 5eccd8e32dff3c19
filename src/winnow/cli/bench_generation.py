"""`winnow bench generation`: plans against full attention over whole generations of a model of a known shape."""

from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from winnow.bench.__main__ import DTYPES, Device, Dtype, Repeats, ShapeName, Threads, machine
from winnow.bench.decode import CHUNK
from winnow.bench.generation import Generation, measure_generation
from winnow.bench.shapes import random_model, shape_named
from winnow.cli import options
from winnow.cli.bench_view import Found, Length, deliver
from winnow.cli.inputs import check_outputs, parse_plans
from winnow.cli.terminal import Meter, interruptible, new_table
from winnow.errors import CapacityError, InputError
from winnow.runtime.decoder import Decoder
from winnow.runtime.loading import parse_device
from winnow.runtime.scorer import ModelScorer

MIB = 2**20
PLANS = ("lazyllm(keep=1.0)", "lazyllm", "lazyllm(max_revive=0)")

New = Annotated[int, typer.Option("--new", metavar="TOKENS", min=3, help="Tokens generated after the prompt.")]


def generation(
    plan: options.Plans = None,
    shape: ShapeName = "qwen3-0.6b",
    length: Length = 4096,
    new: New = 32,
    dtype: Dtype = "bfloat16",
    device: Device = "cpu",
    threads: Threads = None,
    repeats: Repeats = 5,
    prefill_chunk: Annotated[int, typer.Option(min=1, help="Prompt tokens computed at a time.")] = CHUNK,
    as_json: options.Json = False,
    out: options.Out = None,
) -> None:
    """Time to the first token, decode steps and whole generations under plans, next to full attention's.

    The weights are random, so attention is too: more tokens are revived than a trained model would ask for.
    """
    plans, sizes = parse_plans(plan, PLANS), shape_named(shape)
    check_outputs(out, None)
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is unknown; known: {', '.join(DTYPES)}")
    where = parse_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    if length + new > (most := sizes.config().max_position_embeddings):
        raise CapacityError(f"{length} + {new} tokens are more than the shape's {most} positions")
    decoder = Decoder(random_model(sizes, DTYPES[dtype], where))
    for each in plans:
        each.validate(decoder.shape)
        each.compute.prepare(ModelScorer(decoder, None, prefill_chunk))
    measured: list[Generation] = []
    runs = (len(plans) + 1) * (repeats + 1)
    with interruptible(), Meter(f"{runs} generations", runs) as meter:
        measured = measure_generation(
            decoder, sizes, plans, length, new, repeats=repeats, chunk=prefill_chunk, progress=lambda: meter.advance(1)
        )
    records = [each.to_dict(measured[0]) for each in measured]
    figures = {"shape": shape, "length": length, "new": new, "repeats": repeats, "records": records}
    about = {"dtype": dtype, "prefill_chunk": prefill_chunk, "machine": machine(where)}
    title = f"{shape}, {length:,} prompt tokens, {new} new"
    deliver(Found("generation", bool(records), figures, _table(records, title), None), about, as_json, out, None)


def _table(records: list[dict[str, Any]], title: str) -> Table:
    """A row per plan; x: of full attention's, the median over turns."""
    table = new_table(title, "medians; x: of full attention's in the same turn; step: one decode step")
    table.add_column("plan", overflow="fold", min_width=20)
    for heading in (
        "rows\n%",
        "TTFT\ns",
        "\nx",
        "step\nms",
        "\nx",
        "all\ns",
        "\nx",
        "revived\nrows",
        "memory\nMiB",
        "of it\naside\nMiB",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for record in records:
        stats = record["stats"]
        table.add_row(
            record["plan"],
            f"{100 * stats['rows_computed'] / stats['rows_full']:.1f}",
            f"{record['ttft_s']:.2f}",
            f"{record['ttft_ratio']:.3f}",
            f"{1000 * record['step_s']:.1f}",
            f"{record['step_ratio']:.3f}",
            f"{record['total_s']:.2f}",
            f"{record['total_ratio']:.3f}",
            f"{stats['revived_rows']:,}",
            f"{stats['total_bytes'] / MIB:.0f}",
            f"{stats['aux_bytes'] / MIB:.0f}",
        )
    return table
