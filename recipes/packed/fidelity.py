"""How far packed weights, bfloat16 and llama.cpp are from the float32 model of the same GGUF file, on real texts:
`python -m recipes.packed.fidelity MODEL.gguf --text prose=FILE --text code=FILE --out fidelity.json`.

Teacher-forced: the first tokens of each text, the same ids for all. Winnow and llama.cpp are measured twice, in a
whole forward and fed token by token, where other kernels run. Of a directory of float weights: what rounding them to 4
bits costs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from benchmarks.machine import machine
from transformers.utils import logging as transformers_logging

from winnow import LLM, Plan
from winnow.cli.terminal import Meter, console, new_table, say
from winnow.errors import InputError, WinnowError
from winnow.evaluation.about import commit
from winnow.evaluation.peers.compare import Workers
from winnow.evaluation.peers.registry import parse_pythons, peer_arms, plan_arms
from winnow.evaluation.peers.weights import weights_of
from winnow.reading import read_text

from .forced import Forced, Job, measure, over_all

DTYPE = "bfloat16"
CHUNK = 2048


def main() -> None:
    """Parse the flags; measure; write and show."""
    parser = argparse.ArgumentParser(prog="python -m recipes.packed.fidelity", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="a GGUF file, or a directory")
    parser.add_argument("--text", action="append", required=True, metavar="KIND=FILE", help="repeatable")
    parser.add_argument("--tokens", type=int, default=2000, help="of each text; default %(default)s")
    parser.add_argument("--peer-python", action="append", default=[], metavar="llama.cpp=PATH")
    parser.add_argument("--threads", type=int, help="default: torch's own choice")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the figures, JSON")
    flags = parser.parse_args()
    try:
        _measure(flags)
    except WinnowError as error:
        parser.exit(2, f"error: {error}\n")


def _measure(flags: argparse.Namespace) -> None:
    if flags.threads is not None:
        torch.set_num_threads(flags.threads)
    transformers_logging.disable_progress_bar()
    llm = LLM(flags.model, dtype=DTYPE, device="cpu")
    texts = {kind: _ids(llm, Path(file), flags.tokens) for kind, file in map(_named, flags.text)}
    reference, jobs = _jobs(parse_pythons(flags.peer_python), of_file=llm.source is not None)
    with Workers([job.arm for job in jobs if not job.fed], threads=torch.get_num_threads(), device="cpu"):
        pass  # what is missing is said before any work
    found: list[Forced] = []
    texts_named = {kind: Path(file).name for kind, file in map(_named, flags.text)}
    about = {
        "model": Path(flags.model).name,
        "texts": texts_named,
        "tokens": flags.tokens,
        "reference": reference.label,
        "commit": commit(),
    }
    about["machine"] = machine(torch.device("cpu"))
    with (
        weights_of(llm, [reference.arm, *(job.arm for job in jobs)], say) as weights,
        Meter("measuring", len(texts) * (1 + len(jobs))) as meter,
        tempfile.TemporaryDirectory(prefix="winnow-logits-") as scratch,
    ):
        del llm

        def done(what: str) -> None:
            meter.advance(1)
            meter.note(what)

        for each in measure(weights, reference, jobs, texts, Path(scratch), done):
            found.append(each)
            rows = [row.to_dict() for row in [*found, *over_all(found)]]
            flags.out.write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n", encoding="utf-8")
    show([*found, *over_all(found)], f"{Path(flags.model).name}, {flags.tokens:,} tokens of each text")


def show(rows: Sequence[Forced], title: str) -> None:
    """Print a table per kind of text and one of all."""
    for kind in dict.fromkeys(row.kind for row in rows):
        caption = "KL: nats; perplexity x: of the float32 model's, on the same tokens"
        table = new_table(f"{kind}: {title}", caption)
        table.add_column("arm", overflow="fold", min_width=30)
        for heading in ("tokens", "top-1\n%", "KL", "perplexity", "perplexity\nx"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in rows:
            if row.kind == kind:
                figures = (f"{row.kl:.5f}", f"{row.perplexity:.3f}", f"{row.ratio:.4f}")
                table.add_row(row.job, f"{row.tokens:,}", f"{100 * row.top1:.2f}", *figures)
        console().print(table)


def _jobs(pythons: dict[str, str], *, of_file: bool) -> tuple[Job, list[Job]]:
    """The reference, and what is compared with it: ways to run a GGUF file, or a checkpoint rounded to 4 bits."""
    [packed], [dense] = plan_arms([Plan()], CHUNK), plan_arms([Plan()], CHUNK, "dense", ", dense")
    if not of_file:
        [rounded] = plan_arms([Plan()], CHUNK, "int4", ", int4")
        return Job(dense, "float32"), [Job(dense, DTYPE), Job(rounded, DTYPE), Job(rounded, DTYPE, fed=True)]
    llama, stock = peer_arms(["llama.cpp:file", "hf"], pythons)
    jobs = [Job(packed, DTYPE), Job(packed, DTYPE, fed=True), Job(dense, DTYPE), Job(dense, DTYPE, fed=True)]
    # llama.cpp takes no dtype: it multiplies the file's own blocks by activations of 8 bits.
    return Job(dense, "float32"), [*jobs, Job(stock, DTYPE), Job(llama, "as it is"), Job(llama, "as it is", fed=True)]


def _named(text: str) -> tuple[str, str]:
    kind, equals, file = text.partition("=")
    if not (kind and equals and file):
        raise InputError(f"--text {text!r}: write it like prose=FILE")
    return kind, file


def _ids(llm: LLM, file: Path, tokens: int) -> list[int]:
    if llm.tokenizer is None:
        raise InputError("the model has no tokenizer, so it cannot read --text")
    ids: list[int] = llm.tokenizer(read_text(file))["input_ids"]
    if len(ids) < tokens:
        raise InputError(f"{file} has {len(ids):,} tokens, fewer than --tokens {tokens:,}")
    return ids[:tokens]


if __name__ == "__main__":
    main()
