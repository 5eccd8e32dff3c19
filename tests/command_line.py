"""A command line, run in this process, and what its tests give it."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App

from tiny import save_tiny_model
from winnow.cli import options
from winnow.cli.main import run_app

MADE_BY = {"typed", "commit", "machine"}  # what the JSON of every benchmark says of itself
WAYS_TO_PEERS = [  # what has to be importable, the peer, and how to get it
    ("llama_cpp", "llama.cpp", "pip install llama-cpp-python"),
    ("kvpress", "kvpress:SnapKVPress(0.5)", "--peer-python kvpress=DIR/bin/python"),
]


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which has to be one JSON document and nothing else."""
        return json.loads(self.out)


Call = Callable[..., Result]


def call(application: App, arguments: Sequence[object], capsys: pytest.CaptureFixture[str]) -> Result:
    """Exit code, standard output, standard error."""
    with pytest.MonkeyPatch.context() as patch:
        # A command of its own has not imported it; where it is, cyclopts asks it first, whose messages are others.
        patch.delitem(sys.modules, "pydantic", raising=False)
        code = run_app(application, [str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return Result(code, out, err)


@pytest.fixture(autouse=True)
def toy_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that are given no model take the bundled one, whatever is installed here."""
    monkeypatch.setattr(options, "default_model", lambda: options.TOY)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "document.txt"
    path.write_text("The ferry leaves at nine. " * 20 + "It returns at noon.\n", encoding="utf-8")
    return path
