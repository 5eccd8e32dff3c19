"""`winnow bench decoding`: whole decodes after many cached tokens, with slow steps and fast ones told apart."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import torch
import typer
from rich.console import Group, RenderableType

from winnow.bench.__main__ import DTYPES, Device, Dtype, Repeats, ShapeName, Threads, machine
from winnow.bench.compare import with_full
from winnow.bench.decode import CHUNK
from winnow.bench.decoding import Decoding, measure_decoding, turns_of
from winnow.bench.shapes import Shape, random_model, shape_named
from winnow.bench.speed import machine_rates, typical
from winnow.cli import options
from winnow.cli.bench_plot import plot_decoding
from winnow.cli.bench_view import Found, deliver
from winnow.cli.inputs import check_outputs, parse_plans
from winnow.cli.terminal import Meter, interruptible, new_table
from winnow.errors import CapacityError, InputError
from winnow.plan import Plan
from winnow.runtime.decoder import Decoder
from winnow.runtime.loading import parse_device
from winnow.runtime.scorer import ModelScorer

PLANS = ("slowfast(budget=1536, sink=4, recent=256, trigger='periodic', interval=24)",)
LENGTHS = (8192, 32768)

Record = dict[str, Any]
Lengths = Annotated[
    list[int] | None,
    typer.Option(
        "--length", "-l", metavar="TOKENS", min=1,
        help=f"Tokens cached before; repeatable.  [default: {', '.join(map(str, LENGTHS))}]",
    ),
]  # fmt: skip
Batches = Annotated[
    list[int] | None,
    typer.Option("--batch", "-b", metavar="SEQUENCES", min=1, help="Decoded together; repeatable.  [default: 1]"),
]
New = Annotated[int, typer.Option("--new", metavar="TOKENS", min=1, help="Tokens decoded by every sequence.")]
StockSteps = Annotated[
    int, typer.Option(metavar="STEPS", min=0, help="Steps of stock transformers, one sequence; 0: leave it out.")
]
FullSteps = Annotated[int, typer.Option(metavar="STEPS", min=1, help="Steps of full attention, which are all alike.")]


def decoding(
    plan: options.Plans = None,
    shape: ShapeName = "qwen3-0.6b",
    length: Lengths = None,
    batch: Batches = None,
    new: New = 128,
    stock_steps: StockSteps = 5,
    full_steps: FullSteps = 16,
    dtype: Dtype = "bfloat16",
    device: Device = "cpu",
    threads: Threads = None,
    repeats: Repeats = 3,
    as_json: options.Json = False,
    out: options.Out = None,
    plot: options.Plot = None,
) -> None:
    """Time per token of whole decodes under plans, alone and in batches, next to full attention's and to stock's.

    The weights, the cached units and the tokens are random, and there is no text: slow steps come periodically or by
    chance. All sequences of a batch have the same length and, where they have slow steps, have them together.
    """
    plans, sizes = with_full(parse_plans(plan, PLANS)), shape_named(shape)
    lengths, batches = sorted(set(length or LENGTHS)), sorted(set(batch or [1]))
    check_outputs(out, plot)
    decoder = _decoder(sizes, plans, lengths[-1] + new + 1, dtype, device, threads)
    samples, measured = [machine_rates(decoder.dtype, decoder.device)], list[Decoding]()
    total = turns_of(len(plans), len(lengths), len(batches), repeats=repeats, stock_steps=stock_steps)
    with Meter(f"{total} decodes", total) as meter, interruptible():
        for found in measure_decoding(
            decoder, sizes, plans, lengths, batches, new=new, repeats=repeats, stock_steps=stock_steps,
            full_steps=full_steps, progress=lambda: meter.advance(1),
        ):  # fmt: skip
            measured += found
            samples.append(machine_rates(decoder.dtype, decoder.device))
            meter.note(f"{found[0].length:,} tokens: done")
    rates = typical(samples)
    others = {(each.plan, each.length, each.batch): each for each in measured}
    records = [each.to_dict(rates, others) for each in measured]
    figures = {"shape": shape, "new": new, "repeats": repeats, "stock_steps": stock_steps}
    figures |= {"full_steps": full_steps, "rates": asdict(rates), "records": records}
    about = {"dtype": dtype, "machine": machine(decoder.device)}
    shown = _tables(records, f"{shape}, {new} tokens decoded", rates.copy_gb_s)
    complete = len({each.length for each in measured}) == len(lengths)
    draw = (lambda path: plot_decoding(path, records)) if records else None
    deliver(Found("decoding", complete, figures, shown, draw), about, as_json, out, plot)


def _decoder(sizes: Shape, plans: Sequence[Plan], tokens: int, dtype: str, device: str, threads: int | None) -> Decoder:
    """The random model, once all is known to fit it."""
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is unknown; known: {', '.join(DTYPES)}")
    where = parse_device(device)
    if tokens > (most := sizes.config().max_position_embeddings):
        raise CapacityError(f"{tokens} tokens, cached and new, are more than the shape's {most} positions")
    if threads is not None:
        torch.set_num_threads(threads)
    decoder = Decoder(random_model(sizes, DTYPES[dtype], where))
    scorer = ModelScorer(decoder, None, CHUNK)
    for each in plans:
        each.validate(decoder.shape)
        each.compute.prepare(scorer)
        each.read.prepare(scorer)
    return decoder


def _of(kind: str, figure: str, show: Callable[[float], str]) -> Callable[[Record], str]:
    """A figure of a record's fast or slow steps, where it has any."""
    return lambda record: "-" if record[kind] is None else show(record[kind][figure])


def _number(name: str, digits: int) -> Callable[[Record], str]:
    return lambda record: "-" if record[name] is None else f"{record[name]:.{digits}f}"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.4g}"


COLUMNS: dict[str, Callable[[Record], str]] = {
    "batch": lambda record: f"{record['batch']}",
    "TPOT\nms": lambda record: _milliseconds(record["tpot_s"]),
    "of\nfull\nx": _number("ratio_to_full", 3),
    "of\nstock\nx": _number("ratio_to_stock", 4),
    "tokens\n/s": lambda record: f"{record['tokens_per_s']:.1f}",
    "of\none\nx": _number("tokens_of_one", 2),
    "grown\nx": _number("growth", 2),
    "fast\nms": _of("fast", "seconds", _milliseconds),
    "units": _of("fast", "units", lambda units: f"{units:,.0f}"),
    "MB": _of("fast", "bytes", lambda size: f"{size / 1e6:,.0f}"),
    "GB/s": _of("fast", "gb_s", lambda rate: f"{rate:.1f}"),
    "of\ncopy\n%": _of("fast", "share_of_copy", lambda share: f"{100 * share:.0f}"),
    "slow\nms": _of("slow", "seconds", _milliseconds),
    "slow\nsteps": _of("slow", "count", lambda count: f"{count:g}"),
    "slow\nGB/s": _of("slow", "gb_s", lambda rate: f"{rate:.1f}"),
}
CAPTION = (
    "TPOT: mean over the steps; tokens/s: of the batch, and x of one sequence's; grown: TPOT over the shortest "
    "length's; fast, with what it reads, and slow: median steps, slow ones reading all units that are kept; copy: "
    "{copy:.1f} GB/s, read and written. Medians over the turns; the first, dense, step of each is not counted"
)


def _tables(records: Sequence[Record], title: str, copy_gb_s: float) -> RenderableType:
    """A table per length, a row per plan and batch."""
    tables = []
    for length in dict.fromkeys(record["length"] for record in records):
        table = new_table(f"{title} after {length:,}", CAPTION.format(copy=copy_gb_s))
        table.add_column("plan", overflow="fold", min_width=18)
        for heading in COLUMNS:
            table.add_column(heading, justify="right", no_wrap=True)
        for record in (record for record in records if record["length"] == length):
            table.add_row(record["plan"], *(show(record) for show in COLUMNS.values()))
        tables.append(table)
    return Group(*tables) if tables else "no length was finished"
