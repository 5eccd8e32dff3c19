"""The output directory of a run: empty before it, with checkpoints while it lasts, without them after it."""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import is_zipfile

from safetensors import SafetensorError, safe_open

from winnow.errors import InputError, ModelError
from winnow.runtime.adapters import METADATA, read_metadata

CHECKPOINT = "checkpoint-"
COMPLETE = "trainer_state.json"  # the last file of a checkpoint to be written
OF_BASE = ("dtype", "prefill_chunk", "packed")  # beside its fingerprint: on which the last bits of weights depend
# Of a recipe: what may change between the parts of a run.
HOW_OFTEN = ("save_every", "save_minutes", "log_every", "validate_every")


def check_fresh(out: Path) -> None:
    """Raise InputError unless `out` is new or an empty directory that can be written to."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; give a directory for what is trained")
    if out.is_dir() and any(out.iterdir()):
        way = "resume the run in it, or give a new directory" if (out / METADATA).is_file() else "give a new directory"
        raise InputError(f"{out} is not empty; {way}")
    place = next((parent for parent in (out, *out.absolute().parents) if parent.is_dir()), out)
    try:
        with TemporaryDirectory(dir=place):  # nothing stays, whatever comes after
            pass
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}; give another directory") from error


def check_resumed(out: Path, record: dict[str, Any]) -> Path:
    """The checkpoint to go on from. Raises InputError where there is none, or where the run was another one.

    record: the metadata of the run as it is asked for now.
    """
    before = read_metadata(out)
    if before is None:
        raise InputError(f"there is no run to resume in {out}: it holds no {METADATA}; start one without resume")
    if before["result"] is not None:
        raise InputError(f"the run in {out} is finished; start another one in a new directory")
    then, now = _identity(before), _identity(record)
    for name in OF_BASE:
        then[name] = now[name] if then[name] is None else then[name]  # older runs have not noted it
    if changed := [
        f"{name} {then.get(name)!r} before, {now[name]!r} now" for name in now if then.get(name) != now[name]
    ]:
        raise InputError(f"{out} holds another run: {'; '.join(changed)}; give the same again, or a new directory")
    if (found := last_checkpoint(out)) is None:
        raise InputError(f"the run in {out} was stopped before its first checkpoint; empty it and start again")
    return found


def last_checkpoint(out: Path) -> Path | None:
    """The newest checkpoint that was written to its end."""
    found = [path.parent for path in out.glob(f"{CHECKPOINT}*/{COMPLETE}")]
    return max(found, key=lambda path: int(path.name.removeprefix(CHECKPOINT)), default=None)


def check_trainers(checkpoint: Path) -> None:
    """Raise ModelError where a file of a checkpoint that transformers' Trainer wrote is not there, or is damaged."""
    try:
        json.loads((checkpoint / COMPLETE).read_text(encoding="utf-8"))
        for pattern in ("*.safetensors", "optimizer.pt", "scheduler.pt", "rng_state*.pth"):
            if not (files := list(checkpoint.glob(pattern))):
                raise FileNotFoundError(f"{pattern} is not there")
            for file in files:
                if file.suffix == ".safetensors":
                    with safe_open(file, framework="numpy"):
                        pass
                elif not is_zipfile(file):  # as torch.save writes it; its end has the list of what is in it
                    raise ValueError(f"{file.name} is cut short")
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(
            f"{checkpoint} is damaged ({str(error)[:200]}); remove it, to go on from one before, or start again"
        ) from error


def remove_unfinished(out: Path) -> None:
    """Delete checkpoints that were not written to their end."""
    for path in out.glob(f"{CHECKPOINT}*"):
        if not (path / COMPLETE).is_file():
            shutil.rmtree(path, ignore_errors=True)


def remove_checkpoints(out: Path) -> None:
    """Delete the checkpoints of a finished run."""
    for path in out.glob(f"{CHECKPOINT}*"):
        shutil.rmtree(path)


def _identity(record: dict[str, Any]) -> dict[str, Any]:
    """What may not change between the parts of a run, by name."""
    known = {name: record.get(name, {}) for name in ("base", "recipe", "data")}
    lora = known["recipe"].get("lora") or {}
    return {
        **{name: record.get(name) for name in ("plan", "begin", "teacher")},
        "model": known["base"].get("fingerprint"),
        **{name: known["base"].get(name) for name in OF_BASE},
        "data": known["data"].get("sha256"),
        "validation": (known["data"].get("validation") or {}).get("sha256"),
        **{name: value for name, value in known["recipe"].items() if name not in ("lora", *HOW_OFTEN)},
        "lora": bool(lora),
        **{f"lora {name}": value for name, value in lora.items()},
    }
