"""`python -m benchmarks together`: sequences that decode together, beside one alone, the floor and transformers."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

import torch
from rich.console import Group, RenderableType

from benchmarks.commands.engine import Together
from benchmarks.continuous import Continuous
from benchmarks.document import ids_of, pieces
from benchmarks.record import Record, about
from benchmarks.source import load_checked
from benchmarks.speed import STOCK
from benchmarks.tables import PLAN_COLUMNS
from benchmarks.together import (
    WARMUP,
    TogetherRow,
    Turn,
    arms_of,
    measure_together,
    summarise_together,
)
from winnow import LLM
from winnow.cli.deliver import deliver
from winnow.cli.inputs import parse_plans
from winnow.cli.terminal import Meter, interruptible, new_table, say
from winnow.errors import InputError

PLANS = ("full", "slowfast(budget=512, recent=128)", "streaming(recent=512)", "snapkv(budget=512)")
STOCK_STEPS = 4  # in a turn of transformers


def together(options: Together) -> int:
    """Time steps of many sequences; returns the exit code."""
    plans, count, length = parse_plans(options.plan, PLANS), options.sequences, options.length
    arms = arms_of(plans, count)
    new = WARMUP + options.repeats * options.steps + 2 * count + 2
    llm = load_checked(options.source(), plans, length + new)
    if llm.device.type != "cpu":
        raise InputError(f"the floor and transformers are measured on a CPU, not on {llm.device}")
    prompts = pieces(ids_of(llm, options.text, options.shape, _wanted(options)), count, length)
    settings = {name: getattr(options, name) for name in ("length", "sequences", "steps", "repeats")}
    turns, units = list[Turn](), dict[str, float]()
    total = sum(len(arm.plans) * length + options.repeats * options.steps for arm in arms)
    with Meter("together", total) as meter, interruptible():
        stock, reason = _stock(options, llm, prompts, meter.note)
        for turn in measure_together(
            llm, arms, prompts, stock, steps=options.steps, repeats=options.repeats, units=units, progress=meter.advance
        ):
            turns.append(turn)
            meter.note(f"turn {len(turns)} of {options.repeats}: done")
        if stock is not None:
            stock.close()
    complete, name = len(turns) == options.repeats, options.shape or options.model_name
    rows = summarise_together(arms, turns, units, llm.decoder.shape.unit_bytes) if turns else []
    figures = {
        **settings,
        "summary": [asdict(row) for row in rows],
        "stock_error": reason,
        "units": units,
        "unit_bytes": llm.decoder.shape.unit_bytes,
        "records": [asdict(turn) for turn in turns],
    }
    title = f"{name}, after {length:,} tokens each, {torch.get_num_threads()} threads"
    shown = _shown(rows, reason, title) if rows else "no turn was finished"
    return deliver(Record("together", figures, shown, complete=complete, about=about(llm, name)), options)


def _wanted(options: Together) -> int:
    """How much of the text is taken: prompts that overlap by three quarters at most."""
    return options.length + (options.sequences - 1) * max(1, options.length // 4)


def _stock(
    options: Together, llm: LLM, prompts: Sequence[list[int]], note: Callable[[str], None]
) -> tuple[Continuous | None, str | None]:
    """transformers with its prompts computed, or None; and if it was asked for and cannot, what it says."""
    if not options.stock:
        return None, None
    note(f"{STOCK}: prompts")
    model = options.load(weights="dense").model if options.shape is None else llm.model
    made = Continuous(model, prompts, STOCK_STEPS)
    try:
        made.begin()
    except Exception as error:  # whatever it is, it is what the table says instead
        reason = f"{type(error).__name__}: {error}"
        say(f"{STOCK} is left out: {reason}")
        return None, reason
    return made, None


def _x(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


COLUMNS: dict[str, Callable[[TogetherRow], str]] = {
    "step\nms": lambda row: f"{1000 * row.step_s:.1f}",
    "tokens\n/s": lambda row: f"{row.tokens_per_s:.1f}",
    "of one\nx": lambda row: _x(row.of_one),
    "range\nx": lambda row: "-" if row.of_one is None else f"{row.of_one_low:.2f}-{row.of_one_high:.2f}",
    "floor\nms": lambda row: "-" if row.floor_s is None else f"{1000 * row.floor_s:.1f}",
    "of floor\nx": lambda row: _x(row.of_floor),
    f"of\n{STOCK}\nx": lambda row: _x(row.of_stock, 1),
}
CAPTION = (
    "medians of the turns; of one: tokens per second over those of one sequence alone in the same turn, of the mixed "
    "ones over the mean of its plans'; floor: the products of so many rows, and everybody's units at the measured rate "
    f"of reading; of {STOCK}: tokens per second over its continuous batching's"
)


def _shown(rows: Sequence[TogetherRow], reason: str | None, title: str) -> RenderableType:
    """A row per arm, and why transformers is missing."""
    table = new_table(title, CAPTION)
    table.add_column("plan", overflow="fold", min_width=PLAN_COLUMNS)
    table.add_column("sequences", justify="right")
    for heading in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.name, str(row.sequences), *(show(row) for show in COLUMNS.values()))
    return Group(table, *([] if reason is None else [f"{STOCK} is left out: {reason}"]))
