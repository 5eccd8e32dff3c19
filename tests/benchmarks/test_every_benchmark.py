"""Benchmarks by name: what `--help` costs, and what the documents say to type."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.__main__ import BENCHMARKS, app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def typed() -> list[str]:
    """The lines of all documents that call a benchmark, joined where a backslash breaks them."""
    lines = [line for page in PAGES for line in page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()]
    return [line.split(" #")[0] for line in lines if line.startswith("python -m benchmarks ")]


HELP = """
import sys
from benchmarks.__main__ import BENCHMARKS, app, run_app

for arguments in ([], *([name] for name in BENCHMARKS)):
    assert run_app(app, [*arguments, "--help"]) == 0
    assert "torch" not in sys.modules, arguments
"""


def test_help_names_them_all_and_loads_no_torch():
    done = subprocess.run([sys.executable, "-c", HELP], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, *others = done.stdout.split("Usage: python -m benchmarks ")[1:]
    assert all(name in first for name in BENCHMARKS)
    assert [other.split()[0] for other in others] == list(BENCHMARKS)


@pytest.mark.parametrize("line", typed())
def test_what_the_documents_say_to_type_can_be_typed(line):
    line = re.sub(r"(?<=--examples )N\b|(?<=--pid )PID\b", "4", line)
    line = re.sub(r'(?<= )"PLAN"|(?<=--plan )PLAN\b', "full", line)
    app.parse_args(shlex.split(line)[3:])


def test_there_are_such_lines():
    assert len(typed()) >= 15


def test_records_of_another_benchmark_are_no_speeds(bench, tmp_path):
    (tmp_path / "sweep.json").write_text('{"command": "sweep"}', encoding="utf-8")
    result = bench("table", tmp_path / "sweep.json")
    assert (result.code, "no records of decode or prefill" in result.err) == (2, True)
