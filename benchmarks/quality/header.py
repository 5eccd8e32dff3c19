"""What every record of a file depends on: model, code, machine, command, split, seed."""

import hashlib
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.options import PROGRAM
from benchmarks.record import about
from winnow import LLM
from winnow.cli.deliver import travelling
from winnow.errors import InputError
from winnow.models.files import weight_files
from winnow.runtime.adapters import ADAPTER_WEIGHTS, find_adapter
from winnow.runtime.loading import gguf_file, locate

ROOT = Path(__file__).parents[2]
MEASURES = ("src", "benchmarks")  # folders that decide what is measured


def header(llm: LLM, model: str, *, commit: str, **settings: Any) -> dict[str, Any]:
    """For `Journal`. commit: see `revision`."""
    typed = f"{PROGRAM} {shlex.join(map(travelling, sys.argv[1:]))}"
    known = about(llm, travelling(model), **settings)
    return {"commit": commit, "weights_sha256": weights_hash(model), **known, "typed": typed}


def revision(uncommitted: bool) -> str:
    """The last commit that changed what measures, with "+" where files have been changed since.

    Raises InputError where they have been, or where there is no commit, unless that is asked for.
    """
    try:
        changed = _git("status", "--porcelain", "--", *MEASURES)
        last = _git("log", "-1", "--format=%h", "--", *MEASURES)
    except (OSError, subprocess.CalledProcessError) as error:
        if not uncommitted:
            raise InputError("this is no git repository, so no commit can be named; --uncommitted says so") from error
        return "unknown"
    if changed and not uncommitted:
        file = changed.splitlines()[0].strip()
        raise InputError(f"there are changes that no commit has ({file}); commit them, or say --uncommitted")
    return last + "+" * bool(changed)


def weights_hash(model: str) -> str:
    """SHA-256 of the files of weights, one after the other in the order of their names."""
    file = gguf_file(model)
    return _hash([file] if file is not None else sorted(weight_files(locate(model), model)))


def adapter_hash(source: str) -> str:
    """SHA-256 of an adapter's weights. Raises as `find_adapter`."""
    return _hash([find_adapter(source) / ADAPTER_WEIGHTS])


def _hash(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for each in files:
        with each.open("rb") as stream:
            while block := stream.read(2**20):
                digest.update(block)
    return digest.hexdigest()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
