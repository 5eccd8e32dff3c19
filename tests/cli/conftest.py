"""A saved model, and the command line run in this process."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tiny import save_tiny_model
from winnow.cli import options
from winnow.cli.main import main


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which has to be one JSON document and nothing else."""
        return json.loads(self.out)


Winnow = Callable[..., Result]


@pytest.fixture(autouse=True)
def _toy_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that are given no model take the bundled one, whatever is installed here."""
    monkeypatch.setattr(options, "default_model", lambda: options.TOY)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def winnow(capsys: pytest.CaptureFixture[str]) -> Winnow:
    """`winnow("run", "text", ...)` -> exit code, standard output, standard error."""

    def call(*arguments: object) -> Result:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Result(int(ended.value.code or 0), out, err)

    return call


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "document.txt"
    path.write_text("The ferry leaves at nine. " * 20 + "It returns at noon.\n", encoding="utf-8")
    return path
