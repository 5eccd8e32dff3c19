"""One piece of work: train heads, or measure an arm; what is done is not done again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from recipes.records import write_record
from transformers.utils import logging as transformers_logging

from winnow import LLM
from winnow.errors import InputError
from winnow.evaluation.accuracy import accuracies
from winnow.evaluation.evaluate import environment, evaluate
from winnow.learn.heads import train_heads
from winnow.tasks import task

from .arms import Arm, Heads

MODEL = "needle"
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
CHUNK = 2048  # prompt tokens a step while training: quicker than small chunks
COUNTED = ("cache_bytes", "peak_cache_bytes", "aux_bytes", "total_bytes")


def train(made: Heads, out: Path, threads: int) -> str:
    """Train heads unless they are there."""
    _quiet(threads)
    directory = out / "heads" / made.name
    resume = directory.is_dir()
    try:
        llm = LLM(MODEL, prefill_chunk=CHUNK)
        train_heads(llm, out / "data" / f"{made.data}.jsonl", directory, made.recipe, resume=resume)
    except InputError as error:
        if not resume:
            raise
        if "finished" in str(error):
            return f"{made.name}: there already"
        shutil.rmtree(directory)  # stopped before anything was worth keeping
        return train(made, out, threads)
    return f"{made.name}: trained"


def measure(arm: Arm, length: int, out: Path, threads: int) -> str:
    """Answer the tasks under all budgets of an arm unless that was done; writes a record."""
    name = f"{arm.group}-{arm.name}-{length}".replace(",", "").replace(" ", "-").replace("/", "-")
    record = out / "eval" / f"{name}.json"
    if record.exists():
        return f"{record.stem}: there already"
    _quiet(threads)
    llm = LLM(MODEL, heads=None if arm.heads is None else out / "heads" / arm.heads)
    tasks = [task(name) for name in arm.tasks]
    found = list(evaluate(llm, arm.plans(length), tasks, [length], arm.examples, depths=DEPTHS))
    costs = {
        plan: {name: max(getattr(r.stats, name) for r in found if r.plan == plan) for name in COUNTED}
        for plan in dict.fromkeys(r.plan for r in found)
    }
    document: dict[str, Any] = {
        **arm.to_dict(),
        "length": length,
        "examples": arm.examples * len(DEPTHS),
        "accuracy": [each.to_dict() for each in accuracies(found, DEPTHS)],
        "most_bytes": costs,
        "environment": environment(llm, MODEL),
    }
    write_record(record, document)
    return f"{record.stem}: measured"


def _quiet(threads: int) -> None:
    torch.set_num_threads(threads)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
