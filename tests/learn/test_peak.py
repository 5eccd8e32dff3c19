"""The most memory that a process has held."""

from pathlib import Path

import pytest
import torch

from winnow.learn import peak
from winnow.learn.peak import peak_bytes

CPU = torch.device("cpu")


def test_memory_that_was_given_back_counts() -> None:
    before = peak_bytes(CPU)
    assert before is not None
    torch.ones(2**27 + 2 * before, dtype=torch.int8)
    after = peak_bytes(CPU)
    assert after is not None
    assert after > 2 * before


def test_where_the_system_does_not_say_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "status").write_text("Name: python\n", encoding="utf-8")
    monkeypatch.setattr(peak, "STATUS", tmp_path / "status")
    assert peak_bytes(CPU) is None
