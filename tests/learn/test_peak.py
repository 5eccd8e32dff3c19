"""The most memory that a process has held."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from winnow.learn import peak
from winnow.learn.peak import peak_bytes

CPU = torch.device("cpu")


# In a process of its own: twice what a worker has ever held may be more than there is.
GIVEN_BACK = """
import torch
from winnow.learn.peak import peak_bytes
before = peak_bytes(torch.device("cpu"))
assert before is not None
torch.ones(2**27 + 2 * before, dtype=torch.int8)
after = peak_bytes(torch.device("cpu"))
assert after is not None
assert after > 2 * before
"""


def test_memory_that_was_given_back_counts() -> None:
    subprocess.run([sys.executable, "-c", GIVEN_BACK], check=True)


def test_where_the_system_does_not_say_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "status").write_text("Name: python\n", encoding="utf-8")
    monkeypatch.setattr(peak, "STATUS", tmp_path / "status")
    assert peak_bytes(CPU) is None
