"""`python -m benchmarks file`: a GGUF file on a real text, Winnow beside llama.cpp at its best and transformers."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.table import Table

from benchmarks.commands.models import File
from benchmarks.document import document_ids
from benchmarks.peers_file import WARMUP, WARMUP_STEPS, FileRow, Timed, best_of_llama, measure_file, summarise_file
from benchmarks.record import Record, about
from benchmarks.tables import PLAN_COLUMNS
from winnow import LLM, Plan
from winnow.cli.compare_peers import Typed
from winnow.cli.deliver import deliver
from winnow.cli.inputs import parse_plans
from winnow.cli.terminal import Meter, interruptible, new_table, say, write_json
from winnow.errors import CapacityError, InputError
from winnow.evaluation.compare import with_full
from winnow.evaluation.peers.llama import FAMILY
from winnow.evaluation.peers.registry import plan_arms
from winnow.evaluation.peers.weights import weights_of
from winnow.reading import read_text

PEERS = (FAMILY, "hf")


def file(options: File) -> int:
    """Time the file; returns the exit code."""
    plans, typed = with_full(parse_plans(options.plan)), Typed(options.peer or PEERS, options.peer_python)
    lengths, turns, chunk, out = sorted(set(options.length)), options.turns, options.prefill_chunk, options.out
    if options.resume and out is None:
        raise InputError("--resume goes on with what --out FILE holds; give it")
    typed.check("cpu", options.threads)
    llm = options.of_model(model=options.model, device="cpu", prefill_chunk=chunk).load()
    name = Path(options.model).name
    ids = _ids(llm, options.text, lengths[-1] + options.steps)
    for each in plans:
        llm.prepare(each)
    settings = _settings(options, lengths, ids)
    arms = [*plan_arms(plans, chunk), *plan_arms([Plan()], chunk, "dense", ", dense"), *typed.arms(llm)]
    names, known = [arm.label for arm in arms], about(llm, name, settings=settings, turns=turns)
    timed = _before(out, settings, names) if options.resume and out is not None else []
    past, total = {(each.arm, each.turn) for each in timed}, turns * len(arms)
    with weights_of(llm, arms, say) as weights, Meter("measuring", total) as meter, interruptible():
        del llm
        meter.advance(len(past))
        for found in measure_file(
            weights, arms, ids, lengths, steps=options.steps, turns=turns, done=past, progress=meter.advance
        ):
            timed += found
            meter.note(f"turn {found[0].turn + 1} of {turns}: {found[0].arm}")
            if out is not None:
                write_json(out, Record("file", _figures(timed, names), "", complete=False, about=known).to_dict())
    complete = len({(each.arm, each.turn) for each in timed}) >= total
    title = f"{name}, {options.text.name}, {settings['threads']} threads, medians of {turns} turns"
    shown = _shown(summarise_file(timed, names), lengths, title)
    return deliver(Record("file", _figures(timed, names), shown, complete=complete, about=known), options)


def _settings(options: File, lengths: list[int], ids: list[int]) -> dict[str, Any]:
    """What a figure depends on: a measurement may be gone on with where all of it is the same."""
    return {
        "model": Path(options.model).name,
        "text": options.text.name,
        "ids": hashlib.sha256(json.dumps(ids).encode()).hexdigest(),
        "lengths": lengths,
        "steps": options.steps,
        "warmup": [WARMUP, WARMUP_STEPS],
        "dtype": options.dtype,
        "prefill_chunk": options.prefill_chunk,
        "threads": torch.get_num_threads(),
    }


def _ids(llm: LLM, text: Path, needed: int) -> list[int]:
    if llm.source is None:
        raise InputError(
            "the model does not come from a GGUF file; use `python -m benchmarks peers --model` for others"
        )
    if needed > (most := llm.decoder.shape.max_positions):
        raise CapacityError(f"--length and --steps are {needed:,} tokens, more than the model's {most:,} positions")
    return document_ids(llm, text, needed)


def _before(out: Path, settings: dict[str, Any], names: Sequence[str]) -> list[Timed]:
    """What was measured before, of the arms asked for; InputError where it was measured otherwise."""
    if not out.exists():
        return []
    try:
        document = json.loads(read_text(out))
        before, records = document["settings"], document["records"]
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(f"--resume: {out} holds no measurement of `benchmarks file`; leave --resume out") from error
    if differing := [name for name, value in settings.items() if before.get(name) != value]:
        raise InputError(f"--resume: {out} was measured with another {', '.join(differing)}; give another --out")
    return [Timed.from_dict(each) for each in records if each["arm"] in names]


def _figures(timed: Sequence[Timed], names: Sequence[str]) -> dict[str, Any]:
    rows = summarise_file(timed, names)
    lengths = dict.fromkeys(row.length for row in rows)
    bests = {
        str(length): {name: vars(each) for name, each in best_of_llama(rows, length).items()} for length in lengths
    }
    return {
        "summary": [row.to_dict() for row in rows],
        "llama.cpp at its best": bests,
        "records": [each.to_dict() for each in timed],
    }


def _shown(rows: Sequence[FileRow], lengths: Sequence[int], title: str) -> RenderableType:
    """A row per arm, a column per figure and length, and a line on what the ratios are of."""
    if not rows:
        return "nothing was measured"
    lines, bests = [], {length: best_of_llama(rows, length) for length in lengths}
    if any(bests.values()):
        prefill = [
            f"prefill of {length:,}: {found['prefill_s'].value:.3g} s ({found['prefill_s'].arm})"
            for length, found in bests.items()
            if found
        ]
        token = [
            f"a token after {length:,}: {1000 * found['token_s'].value:.3g} ms ({found['token_s'].arm})"
            for length, found in bests.items()
            if found
        ]
        lines = [f"{FAMILY} at its best: {'; '.join([*prefill, *token])}"]
    return Group(_table(rows, lengths, title), *lines)


def _table(rows: Sequence[FileRow], lengths: Sequence[int], title: str) -> Table:
    table = new_table(title, f"medians, of steps of their means; x: of the best of {FAMILY}'s arms in the same column")
    table.add_column("arm", overflow="fold", min_width=PLAN_COLUMNS)
    for what in ("prefill\n{:,}\ns", "token\nafter\n{:,}\nms"):
        for length in lengths:
            table.add_column(what.format(length), justify="right", no_wrap=True)
    by_arm: dict[str, dict[int, FileRow]] = {}
    for row in rows:
        by_arm.setdefault(row.arm, {})[row.length] = row
    for arm, found in by_arm.items():
        prefill = [_cell(found.get(length), "prefill_s", 1) for length in lengths]
        token = [_cell(found.get(length), "token_s", 1000) for length in lengths]
        table.add_row(arm, *prefill, *token)
    return table


def _cell(row: FileRow | None, name: str, scale: float) -> str:
    if row is None:
        return "-"
    ratio = f"\n{row.ratios[name]:.2f}x" if name in row.ratios else ""
    return f"{scale * getattr(row, name):.4g}{ratio}"
