"""Train an arm and measure it on the tasks; what is done already is not done again."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from recipes.records import write_record
from transformers.utils import logging as transformers_logging

from winnow.evaluation.accuracy import accuracies
from winnow.evaluation.evaluate import environment, evaluate
from winnow.learn.directory import last_checkpoint
from winnow.learn.sft import train_speed
from winnow.runtime.adapters import read_metadata
from winnow.runtime.llm import LLM
from winnow.tasks import task

from .arms import Arm

MODEL = "needle"
TASKS = ("passkey", "number", "kv", "multi_needle", "variables")
COUNTED = ("rows_computed", "rows_full", "units_read", "units_full")
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


def run_arm(arm: Arm, out: Path, length: int, examples: int, threads: int) -> Path:
    """Train unless trained, measure unless measured; returns the record's file."""
    torch.set_num_threads(threads)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    record = out / "eval" / f"{arm.name}-{length}-{examples}.json"
    if record.exists():
        return record
    trained = _train(arm, out) if arm.recipe is not None else None
    document = {**arm.to_dict(), "trained": trained, **_measure(arm, out, length, examples)}
    write_record(record, document)
    return record


def _train(arm: Arm, out: Path) -> dict[str, Any]:
    """What `winnow.json` says of the run."""
    directory = out / "models" / arm.name
    if (record := read_metadata(directory)) is not None and record["result"]:
        return record
    resume = last_checkpoint(directory) is not None
    if not resume:
        shutil.rmtree(directory, ignore_errors=True)  # stopped before anything was worth keeping
    llm = LLM(MODEL, dtype=None if arm.training == "lora" else "float32")
    assert llm.tokenizer is not None
    data = out / "train.jsonl"
    report = train_speed(llm.model, llm.tokenizer, data, directory, arm.policy, arm.recipe, resume=resume)
    return report.record


def _measure(arm: Arm, out: Path, length: int, examples: int) -> dict[str, Any]:
    directory = out / "models" / arm.name
    llm = {
        "post hoc": lambda: LLM(MODEL, plan=arm.plan),
        "lora": lambda: LLM(MODEL, adapter=directory),
        "full": lambda: LLM(directory, dtype="bfloat16"),
    }[arm.training]()
    records = list(evaluate(llm, [arm.plan], [task(name) for name in TASKS], [length], examples, depths=DEPTHS))
    found = accuracies(records, DEPTHS)
    costs = [asdict(record.stats) for record in records]
    totals = {key: sum(each[key] for each in costs) for key in COUNTED}
    return {
        "examples": examples * len(DEPTHS),
        "length": length,
        "accuracy": [each.to_dict() for each in found],
        "mean": sum(each.score for each in found) / len(found),
        "loop_rate": sum(each.loop_rate for each in found) / len(found),
        **totals,
        "environment": environment(llm, MODEL),
    }
