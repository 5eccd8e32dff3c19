"""What tests of trainings share: data, a run that is stopped, what a run has told."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tiny import tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM
from winnow.learn.run import Progress


def keys(count: int, repeats: int) -> list[dict[str, Any]]:
    """Rows of three lengths, of which the shortest says its key so many times."""
    return [{"prompt": f"The key is {n}. " * (repeats + n % 3) + "Key?", "answer": f"{n}"} for n in range(count)]


def turns(count: int) -> list[dict[str, Any]]:
    """Rows of two turns."""
    return [
        {"messages": [{"role": role, "content": f"{role} {n}"} for role in ("user", "assistant") * 2]}
        for n in range(count)
    ]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def tiny_llm(**options: Any) -> LLM:
    return LLM(tiny_model(), tokenizer=byte_tokenizer(), **{"prefill_chunk": 32, **options})


def stop_at(step: int) -> Callable[[Progress], None]:
    """Progress of a run that is interrupted after a step."""

    def stop(progress: Progress) -> None:
        if progress.step == step:
            raise KeyboardInterrupt

    return stop


def same(first: dict[str, Tensor], second: dict[str, Tensor], tolerance: float = 0.0) -> None:
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=0, atol=tolerance)


def log(out: Path) -> list[dict[str, Any]]:
    """The lines of a log, without times."""
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{**line, "s": 0} for line in lines]
