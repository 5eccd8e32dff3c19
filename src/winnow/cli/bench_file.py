"""`winnow bench file`: a GGUF file on a real text, Winnow beside llama.cpp at its best and transformers."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Group, RenderableType
from rich.table import Table

from winnow.bench.__main__ import Threads, machine
from winnow.bench.compare import with_full
from winnow.bench.peers.file import WARMUP, WARMUP_STEPS, FileRow, Timed, best_of_llama, measure_file, summarise_file
from winnow.bench.peers.llama import FAMILY
from winnow.bench.peers.registry import plan_arms
from winnow.bench.peers.weights import weights_of
from winnow.bench.revision import commit
from winnow.cli import options
from winnow.cli.bench_view import PLAN_COLUMNS, Found, deliver
from winnow.cli.compare_peers import Peers, Pythons, Typed
from winnow.cli.inputs import check_outputs, load_model, parse_plans
from winnow.cli.terminal import Meter, interruptible, new_table, say, write_json
from winnow.errors import CapacityError, InputError
from winnow.plan import Plan
from winnow.reading import read_text
from winnow.runtime.llm import LLM

LENGTHS = (64, 2048, 8000)
PEERS = (FAMILY, "hf")

Model = Annotated[str, typer.Argument(metavar="MODEL.gguf", help="A GGUF file.")]
Text = Annotated[Path, typer.Option(metavar="FILE", help="The text that is prefilled and followed; the same for all.")]
Lengths = Annotated[
    list[int] | None,
    typer.Option(
        "--length", "-l", metavar="TOKENS", min=1,
        help=f"Tokens prefilled; repeatable.  [default: {', '.join(map(str, LENGTHS))}]",
    ),
]  # fmt: skip
Steps = Annotated[int, typer.Option(min=2, help="Tokens of the text fed one by one after each prefill.")]
Turns = Annotated[int, typer.Option(min=1, help="How many times every arm is started anew, one after another.")]
Dtype = Annotated[str, typer.Option(help="Of Winnow's activations and units, and of dense weights.")]
Chunk = Annotated[int, typer.Option(min=1, help="Prompt tokens that Winnow computes at a time.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what --out holds of the same measurement.")]


def file(
    model: Model,
    text: Text,
    plan: options.Plans = None,
    peer: Peers = None,
    peer_python: Pythons = None,
    length: Lengths = None,
    steps: Steps = 16,
    turns: Turns = 5,
    dtype: Dtype = "bfloat16",
    prefill_chunk: Chunk = 2048,
    threads: Threads = None,
    as_json: options.Json = False,
    out: options.Out = None,
    resume: Resume = False,
) -> None:
    """Time a GGUF file: prefill and tokens after it, Winnow packed and dense, llama.cpp's formats, transformers.

    Every arm runs in a process of its own, one at a time, on the CPU. --plan adds plans beside full attention, on
    packed weights; --peer replaces llama.cpp in all its formats and transformers.
    """
    plans, typed = with_full(parse_plans(plan)), Typed(peer or PEERS, peer_python or ())
    lengths = sorted(set(length or LENGTHS))
    check_outputs(out, None)
    if resume and out is None:
        raise InputError("--resume goes on with what --out FILE holds; give it")
    typed.check("cpu", threads)
    llm = load_model(model, "cpu", dtype, threads, prefill_chunk)
    ids = _ids(llm, text, lengths[-1] + steps)
    for each in plans:
        each.validate(llm.decoder.shape)
    settings = {
        "model": Path(model).name, "text": text.name, "ids": hashlib.sha256(json.dumps(ids).encode()).hexdigest(),
        "lengths": lengths, "steps": steps, "warmup": [WARMUP, WARMUP_STEPS], "dtype": dtype,
        "prefill_chunk": prefill_chunk, "threads": torch.get_num_threads(),
    }  # fmt: skip
    arms = [*plan_arms(plans, prefill_chunk), *plan_arms([Plan()], prefill_chunk, "dense", ", dense"), *typed.arms(llm)]
    names = [arm.label for arm in arms]
    timed = _before(out, settings, names) if resume and out is not None else []
    about = {"settings": settings, "turns": turns, "machine": machine(torch.device("cpu")), "commit": commit()}
    total = turns * len(arms)
    with weights_of(llm, arms, say) as weights, Meter("measuring", total) as meter, interruptible():
        del llm
        past = {(each.arm, each.turn) for each in timed}
        meter.advance(len(past))
        for found in measure_file(
            weights, arms, ids, lengths, steps=steps, turns=turns, done=past, progress=lambda: meter.advance(1)
        ):
            timed += found
            meter.note(f"turn {found[0].turn + 1} of {turns}: {found[0].arm}")
            if out is not None:
                write_json(out, {"complete": False, **_figures(timed, names), **about})
    complete = len({(each.arm, each.turn) for each in timed}) >= total
    title = f"{Path(model).name}, {text.name}, {torch.get_num_threads()} threads, medians of {turns} turns"
    shown = _shown(summarise_file(timed, names), lengths, title)
    deliver(Found("file", complete, _figures(timed, names), shown, None), about, as_json, out, None)


def _ids(llm: LLM, text: Path, needed: int) -> list[int]:
    if llm.source is None:
        raise InputError("the model does not come from a GGUF file; use `winnow bench peers --model` for others")
    if llm.tokenizer is None:
        raise InputError("the model has no tokenizer, so it cannot read --text")
    if needed > (most := llm.decoder.shape.max_positions):
        raise CapacityError(f"--length and --steps are {needed:,} tokens, more than the model's {most:,} positions")
    ids: list[int] = llm.tokenizer(read_text(text).rstrip("\n"))["input_ids"]
    if len(ids) < needed:
        raise InputError(f"--text {text} has {len(ids):,} tokens; --length and --steps need {needed:,}")
    return ids[:needed]


def _before(out: Path, settings: dict[str, Any], names: Sequence[str]) -> list[Timed]:
    """What was measured before, of the arms asked for; InputError where it was measured otherwise."""
    if not out.exists():
        return []
    try:
        document = json.loads(read_text(out))
        before, records = document["settings"], document["records"]
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(f"--resume: {out} holds no measurement of `bench file`; leave --resume out") from error
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
    table = new_table(title, f"medians; x: of the best of {FAMILY}'s arms in the same column")
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
