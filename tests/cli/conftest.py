"""The command `winnow`, run in this process."""

from pathlib import Path

import pytest

from command_line import Call, call, document, tiny, toy_by_default
from learning import write
from winnow.cli.main import app

__all__ = ["document", "tiny", "toy_by_default", "winnow"]


@pytest.fixture
def winnow(capsys: pytest.CaptureFixture[str]) -> Call:
    """`winnow("run", "text", ...)` -> exit code, standard output, standard error."""
    return lambda *arguments: call(app, arguments, capsys)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Six questions to learn from."""
    rows = [{"prompt": f"What is {n} plus one?", "answer": f"{n + 1}"} for n in range(6)]
    return write(tmp_path / "data.jsonl", rows)
