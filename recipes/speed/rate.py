"""Tokens that training reads per second, by cutoff: `python -m recipes.speed.rate train.jsonl --out FILE`.

All parameters of `needle` in float32, a few steps each; the cutoffs take turns.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from benchmarks.machine import machine
from recipes.records import write_record
from rich.progress import track

from winnow.evaluation.about import commit
from winnow.learn.sft import train_speed
from winnow.policies.compute.speed import Speed
from winnow.runtime.llm import LLM

from .arms import FULL, LAYERS
from .run import MODEL

CUTOFFS = (LAYERS, 6, 4, 2)


def main() -> None:
    """Parse the flags, train, write."""
    parser = argparse.ArgumentParser(prog="python -m recipes.speed.rate", description=__doc__)
    parser.add_argument("data", type=Path, help="train.jsonl of `python -m recipes.speed`")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=8, help="of a run; default %(default)s")
    parser.add_argument("--turns", type=int, default=3, help="default %(default)s")
    parser.add_argument("--threads", type=int, default=2)
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    rates: dict[int, list[float]] = {cutoff: [] for cutoff in CUTOFFS}
    for cutoff in track(CUTOFFS * flags.turns, "runs"):
        rates[cutoff].append(rate(cutoff, flags.data, flags.steps))
    flagged = f"--steps {flags.steps} --turns {flags.turns} --threads {flags.threads}"
    command = f"python -m recipes.speed.rate {flags.data.name} {flagged} --out {flags.out.name}"
    about = {"command": command, "commit": commit(), "machine": machine(torch.device("cpu"))}
    write_record(flags.out, {**about, "model": MODEL, "dtype": "float32", "tokens_per_second": rates})


def rate(cutoff: int, data: Path, steps: int) -> float:
    """Of one run, from its first step to its last."""
    llm = LLM(MODEL, dtype="float32")
    assert llm.tokenizer is not None
    with tempfile.TemporaryDirectory() as into:
        recipe = replace(FULL, steps=steps)
        report = train_speed(llm.model, llm.tokenizer, data, Path(into) / "run", Speed(cutoff=cutoff), recipe)
    return float(report.record["result"]["tokens"] / report.record["result"]["seconds"])


if __name__ == "__main__":
    main()
