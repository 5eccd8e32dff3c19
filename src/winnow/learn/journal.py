"""Where a run is and what it has told, and what it writes to be able to go on."""

import dataclasses
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from winnow.errors import ModelError
from winnow.learn.directory import CHECKPOINT, COMPLETE
from winnow.learn.learner import Learner
from winnow.models.files import save_tensors

STATE, LOG = "state.safetensors", "log.jsonl"


@dataclass
class Journal:
    """tokens: read; lines: of the log; pending: figures of the steps since the last one."""

    step: int = 0
    tokens: int = 0
    lines: list[dict[str, Any]] = field(default_factory=list)
    pending: list[dict[str, float]] = field(default_factory=list)

    def note(self, log: Path, line: dict[str, Any]) -> None:
        """Add a line to the log."""
        self.lines.append(line)
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self)) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Journal":
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def save_checkpoint(out: Path, learner: Learner, journal: Journal) -> None:
    """Write all that `load_checkpoint` needs, and delete older checkpoints; one that is cut short is never used."""
    place = out / f"{CHECKPOINT}{journal.step}"
    shutil.rmtree(place, ignore_errors=True)
    older = list(out.glob(f"{CHECKPOINT}*"))
    place.mkdir()
    save_tensors({name: each.cpu().contiguous() for name, each in learner.state().items()}, place / STATE)
    half = place / f"{COMPLETE}.part"
    journal.save(half)
    half.rename(place / COMPLETE)
    for path in older:
        shutil.rmtree(path)


def load_checkpoint(place: Path, learner: Learner, device: torch.device) -> Journal:
    """Bring a learner to where a checkpoint was written. Raises ModelError where it is damaged."""
    try:
        learner.restore(load_file(place / STATE, device=str(device)))
        return Journal.load(place / COMPLETE)
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, RuntimeError) as error:
        raise ModelError(f"{place} is damaged ({str(error)[:200]}); remove it, or start again") from error


def start_log(out: Path, journal: Journal) -> None:
    """The log as it was when the checkpoint was written."""
    (out / LOG).write_text("".join(json.dumps(line) + "\n" for line in journal.lines), encoding="utf-8")
