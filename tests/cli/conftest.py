"""The command `winnow`, run in this process."""

import pytest

from command_line import Call, call, document, tiny, toy_by_default
from winnow.cli.main import app

__all__ = ["document", "tiny", "toy_by_default", "winnow"]


@pytest.fixture
def winnow(capsys: pytest.CaptureFixture[str]) -> Call:
    """`winnow("run", "text", ...)` -> exit code, standard output, standard error."""
    return lambda *arguments: call(app, arguments, capsys)
