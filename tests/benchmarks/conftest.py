"""`python -m benchmarks`, run in this process."""

import pytest
from benchmarks.__main__ import app

from command_line import Call, call, document, tiny, toy_by_default

__all__ = ["bench", "document", "tiny", "toy_by_default"]


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Call:
    """`bench("sweep", "--plan", ...)` -> exit code, standard output, standard error."""
    return lambda *arguments: call(app, arguments, capsys)
