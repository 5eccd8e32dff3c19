"""`python -m benchmarks presses`: plans beside the presses of kvpress that they are translations of."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import torch
from rich.console import Group

from benchmarks.commands.models import Presses
from benchmarks.fidelity_by_domain import Interval
from benchmarks.peer_workers import asked_more
from benchmarks.presses import (
    FAMILY,
    NOTHING,
    PRESSES,
    SAME,
    Pressed,
    Presser,
    PressRow,
    measure_presses,
    summarise_presses,
)
from benchmarks.record import Record, about
from benchmarks.tables import plan_table
from benchmarks.windows import windows
from winnow.cli.compare_peers import ERROR
from winnow.cli.deliver import deliver
from winnow.cli.terminal import collect, say
from winnow.devices import parse_device
from winnow.errors import CapacityError, InputError
from winnow.evaluation.evaluate import Progress
from winnow.evaluation.peers.process import Worker
from winnow.evaluation.peers.registry import parse_pythons, peer_arms
from winnow.evaluation.peers.weights import weights_of
from winnow.presses import translate


def presses(options: Presses) -> int:
    """Compare kept sets, fidelity and bytes; returns the exit code."""
    prompt, given = options.length - options.fed, dict.fromkeys(options.press or PRESSES)
    if prompt < 1:
        raise InputError(f"--fed {options.fed} leaves no prompt of --length {options.length}; feed fewer")
    plans = {press: translate(press, prompt).plan for press in given}
    for press, plan in plans.items():
        if plan.keep.compact:
            raise InputError(f"{press} rotates keys anew, so which ones it keeps cannot be told; ask for what is in it")
    named = {f"{FAMILY}:{each}": each for each in (NOTHING, *plans)}
    arms = [asked_more(arm) for arm in peer_arms(list(named), parse_pythons(options.peer_python))]
    threads = options.threads or torch.get_num_threads()
    host = {"threads": threads, "device": str(parse_device(options.device))}
    with (
        Worker(replace(arms[0], label=FAMILY), threads=threads) as worker,
        tempfile.TemporaryDirectory(prefix="winnow-presses-") as scratch,
    ):
        theirs = Presser(worker, {named[arm.label]: {**host, **arm.options} for arm in arms}, Path(scratch))
        llm = options.load()
        for plan in plans.values():
            llm.prepare(plan)
        chosen = windows(options.data, llm.tokenizer, options.length, options.examples, seed=options.seed)
        total = 2 * len(arms) * len(chosen) * options.length
        with weights_of(llm, arms, say) as files:  # to the end: KVzipPress reads the tokenizer again
            worker.require("load", model=files.of(arms[0]), dtype=files.dtype, context=options.length)
            ended: list[str] = []

            def measure(progress: Progress) -> Iterator[list[Pressed]]:
                try:
                    yield from measure_presses(llm, theirs, plans, chosen, options.fed, progress=progress)
                except CapacityError as error:  # what has been measured is not lost
                    ended.append(str(error))

            found = collect("pressing", total, f"{len(chosen)} windows", measure)
    measured = [each for group in found for each in group]
    rows = summarise_presses(measured)
    figures = {"summary": [asdict(row) for row in rows], "records": [each.to_dict() for each in measured]}
    settings = {"length": options.length, "fed": options.fed, "seed": options.seed, FAMILY: theirs.about}
    title = f"{options.model_name}, {len(found)} windows, {prompt:,} tokens and {options.fed} fed"
    known = about(llm, options.model_name, **settings)
    shown = Group(
        plan_table(rows, COLUMNS, title, CAPTION, "press") if rows else "no window was finished",
        *(f"error: {each}" for each in ended),
    )
    complete, failed = len(found) == len(chosen), ERROR if ended else 0
    return deliver(Record("presses", figures, shown, None, complete, known, failed), options)


COLUMNS: dict[str, Callable[[PressRow], str]] = {
    "kept": lambda row: f"{row.kept:,.0f}",
    "shared\n%": lambda row: f"{100 * row.shared:.2f}",
    "least\n%": lambda row: f"{100 * row.least:.2f}",
    f"heads\n< {100 * SAME:g} %": lambda row: f"{row.below} of {row.heads}",
    "KL": lambda row: f"{row.kl.mean:.4f}",
    "KL,\ntheirs": lambda row: f"{row.kl_theirs.mean:.4f}",
    "less theirs,\n95 %": lambda row: _range(row.apart),
    "units\n%": lambda row: f"{100 * row.cache_share:.1f}",
    "units,\ntheirs\n%": lambda row: f"{100 * row.cache_share_theirs:.1f}",
}
CAPTION = (
    "kept: units per layer and KV head; shared: of these, kept by both; least: by the layer and head that share least; "
    "KL: from its own full attention, nats; less theirs: windows resampled, in pairs; units: bytes held at the end, of "
    "full attention's"
)


def _range(interval: Interval) -> str:
    return f"{interval.low:+.4f} to {interval.high:+.4f}"
