"""`winnow fit`: what memory a text takes under plans, and how long a text fits."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group
from rich.table import Table

from winnow.cli.commands.models import Fit
from winnow.cli.deliver import Record, deliver, travelling
from winnow.cli.inputs import parse_plans
from winnow.cli.machine import available_bytes, resident_bytes
from winnow.cli.tables import Column, facts, table_of
from winnow.cli.terminal import size
from winnow.engine.footprint import Footprints
from winnow.engine.stand_in import StandIn
from winnow.errors import InputError, PlanError
from winnow.plan import Plan
from winnow.policies.registry import POLICIES
from winnow.runtime.llm import chunk_of
from winnow.runtime.outline import Outline, outline_of

GIB = 2**30
# Kernels, the tokenizer and what threads keep, which a run loads beside what this process has: measured, docs/fit.md.
RUNNING = 256 * 2**20


@dataclass(frozen=True)
class Row:
    """A plan. units to total, with weights and libraries: bytes; None where the model has no positions for the text.
    fits: whether text and answer have the memory and the positions. longest: prompt; None: of any length. limit: what
    keeps it from being longer."""

    plan: str
    units: int | None
    beside: int | None
    working: int | None
    total: int | None
    fits: bool
    longest: int | None
    limit: str | None


COLUMNS: list[Column[Row]] = [
    Column("units", lambda row: _size(row.units)),
    Column("beside", lambda row: _size(row.beside)),
    Column("working", lambda row: _size(row.working)),
    Column("in all", lambda row: _size(row.total)),
    Column("fits", lambda row: "yes" if row.fits else "no"),
    Column("longest prompt,\ntokens", lambda row: "any" if row.longest is None else f"{row.longest:,}"),
    Column("limited by", lambda row: row.limit),
]
NOTE = (
    "in all: with weights and libraries; units: the most held; beside: what the plan holds besides, at most; working: "
    "what a step takes and gives back, estimated from above; -: the model has no positions for the text"
)
GATES = "; gates that no plan places stand at shares of the layers here, and may stand higher on the weights"


def fit(options: Fit) -> int:
    """Print what plans take; returns the exit code."""
    plans = parse_plans(options.plan)
    model = outline_of(options.model_name, dtype=options.dtype, weights=options.weights)
    chunk = options.prefill_chunk or chunk_of(packed=bool(model.packed))
    memory = available_bytes() if options.memory is None else _bytes(options.memory)
    chosen, refused = _chosen(plans, model)
    libraries = resident_bytes() + RUNNING
    prompt = StandIn(lambda: model.tokenizer)
    rows = [
        _row(Footprints(plan, model.shape, options.new, chunk, model.expanded, prompt.deep_of(plan)), options.length,
             model, libraries, memory)
        for plan in chosen
    ]  # fmt: skip
    about = {
        "model": travelling(options.model_name), "length": options.length, "new": options.new, "prefill_chunk": chunk,
        "dtype": str(model.dtype).removeprefix("torch."), "memory_bytes": memory, "libraries_bytes": libraries,
        "weights_bytes": model.weights, "packed_bytes": sum(model.packed.values()), "loading_bytes": model.loading,
    }  # fmt: skip
    left_out = f"; left out, since this model does not take them: {', '.join(refused)}" if refused else ""
    unmeasured = GATES if any(plan.compute.goes_by_depth for plan in chosen) else ""
    title = f"{options.length:,} tokens, and {options.new:,} of an answer"
    shown = table_of(rows, {"plan": lambda row: row.plan}, COLUMNS, title=title, note=NOTE + unmeasured + left_out)
    figures = {"plans": [asdict(row) for row in rows]}
    return deliver(Record("fit", figures, Group(_machine(about), "", shown), about=about), options)


def _chosen(given: list[Plan], model: Outline) -> tuple[list[Plan], list[str]]:
    """Full attention and the plans that were given, or each of the catalogue's policies alone; and which of these the
    model does not take. Raises PlanError where it does not take one that was given."""
    for plan in given:
        plan.validate(model.shape)
    if given:
        return list(dict.fromkeys([Plan(), *given])), []
    taken, refused = [Plan()], []
    for policy in POLICIES.values():
        if policy.identity:
            continue
        try:
            (plan := Plan.parse(policy.name)).validate(model.shape)
            taken.append(plan)
        except PlanError:
            refused.append(policy.name)
    return taken, refused


def _row(footprints: Footprints, length: int, model: Outline, libraries: int, memory: int) -> Row:
    room, always = footprints.room, model.weights + libraries
    loads = model.loading + libraries <= memory
    longest = footprints.longest(memory - always) if loads else 0
    limit = None if longest is None else "positions" if longest == room else "memory" if loads else "loading"
    if room is not None and length > room:
        return Row(str(footprints.plan), None, None, None, None, False, longest, limit)
    try:
        held = footprints.of(length)
    except InputError as error:  # a prompt that has no such anchors
        raise InputError(f"{footprints.plan} and --length {length}: {error}") from error
    total = always + held.total
    fits = loads and total <= memory
    return Row(str(footprints.plan), held.units, held.beside, held.working, total, fits, longest, limit)


def _bytes(memory: float) -> int:
    """Of so many GiB. Raises InputError where that is no number that memory can have."""
    if not math.isfinite(memory):
        raise InputError(f"--memory {memory} is no amount of memory; give GiB, such as 16")
    return int(memory * GIB)


def _size(count: int | None) -> str | None:
    return None if count is None else size(count)


def _machine(about: dict[str, Any]) -> Table:
    """What is the same under all plans."""
    held, packed, loading = about["weights_bytes"], about["packed_bytes"], about["loading_bytes"]
    shown = {
        "available": size(about["memory_bytes"]),
        "weights": size(held) + (f", {size(packed)} of it packed" if packed else ""),
        "to load them": f"up to {size(loading)} at a time" if loading > held else "no more",
        "libraries": f"{size(about['libraries_bytes'])}, once: Python, torch and all that this process has loaded",
        "activations": f"{about['dtype']}, of up to {about['prefill_chunk']:,} tokens of a prompt in a step",
    }
    return facts(about["model"], shown)
