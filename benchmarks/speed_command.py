"""`python -m benchmarks decode`, `prefill`, `table` and `plot`: speed beside stock transformers."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.commands.speed import Decode, Plot, Prefill, Table
from benchmarks.decode import measure_decode
from benchmarks.prefill import measure_prefill
from benchmarks.record import Record, about
from benchmarks.report import markdown, table
from benchmarks.shapes import shape_named
from benchmarks.speed import STOCK, Measurement, Rates, machine_rates, typical
from benchmarks.speed_plots import plot_speed
from winnow import Plan
from winnow.cli.deliver import deliver
from winnow.cli.inputs import parse_plans
from winnow.cli.outputs import need_matplotlib
from winnow.cli.terminal import Meter, console, interruptible, write_json
from winnow.errors import InputError
from winnow.reading import read_text

FULL = str(Plan())
Group = tuple[list[Measurement], list[float]]  # all arms at a length, and the difference of logits of each


def decode(options: Decode) -> int:
    """Time decode steps; returns the exit code."""
    return _run("decode", options, measure_decode, new=options.warmup + options.repeats + 1)


def prefill(options: Prefill) -> int:
    """Time prefills; returns the exit code."""
    return _run("prefill", options, measure_prefill, chunk=options.prefill_chunk)


def show(options: Table) -> int:
    """Print records again; returns the exit code."""
    document = _read(options.file)
    if options.markdown:
        print(markdown(document), end="")
    else:
        console().print(table(document))
    return 0


def draw(options: Plot) -> int:
    """Draw records; returns the exit code."""
    need_matplotlib("--out")
    plot_speed(options.out, [_read(file) for file in options.files])
    return 0


def _run(
    what: str, options: Decode | Prefill, measure: Callable[..., Group], *, new: int = 0, chunk: int | None = None
) -> int:
    """Measure every length and show the records; they are written after each, so an interrupt loses one at most.

    new: tokens that follow the longest length.
    """
    plans, lengths = parse_plans(options.plan, [FULL]), list(dict.fromkeys(options.length))
    llm, shape = options.load(plans, max(lengths) + new, chunk), shape_named(options.shape)
    settings = {"what": what, "chunk": chunk, "repeats": options.repeats, "warmup": options.warmup}
    settings |= about(llm, options.shape, shape=options.shape, plans=[str(plan) for plan in plans])
    samples, groups = [machine_rates(llm.dtype, llm.device)], list[Group]()
    with Meter(what, len(lengths)) as meter, interruptible():
        for length in lengths:
            meter.note(f"{what}, {length:,} tokens")
            groups.append(measure(llm, shape, plans, length, repeats=options.repeats, warmup=options.warmup))
            samples.append(machine_rates(llm.dtype, llm.device))
            meter.advance(1)
            if options.out is not None:
                write_json(options.out, _record(what, groups, samples, settings, complete=False).to_dict())
    return deliver(_record(what, groups, samples, settings, complete=len(groups) == len(lengths)), options)


def _record(
    what: str, groups: Sequence[Group], samples: Sequence[Rates], settings: dict[str, Any], complete: bool
) -> Record:
    figures = _figures(groups, typical(samples))
    shown = table({**figures, **settings}) if groups else "no length was finished"
    return Record(what, figures, shown, complete=complete, about=settings)


def _figures(groups: Sequence[Group], rates: Rates) -> dict[str, Any]:
    """The records of what was measured, each next to stock's and, where it ran, full attention's at the same length."""
    records = []
    for measured, differences in groups:
        arms = {each.arm: each for each in measured}
        for each, difference in zip(measured, differences, strict=True):
            record = {**each.to_dict(rates, arms[STOCK]), "logit_difference": difference}
            if FULL in arms and len(arms) > 2:
                record["ratio_to_full"] = each.ratio_to(arms[FULL])
            records.append(record)
    return {"rates": asdict(rates), "records": records}


def _read(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(read_text(file))
    except ValueError as error:
        raise InputError(f"{file} holds no records: {error}") from error
    if not isinstance(document, dict) or "what" not in document:
        raise InputError(f"{file} holds no records of decode or prefill; give what one of them wrote with --out")
    return document
