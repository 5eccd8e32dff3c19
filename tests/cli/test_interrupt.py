"""Ctrl-C, as a real signal to a real process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

STREAMING = "streaming(sink=4, recent=64)"


def start(*arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "winnow", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # A parent started in the background ignores Ctrl-C, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def interrupt(process: subprocess.Popen[bytes]) -> tuple[str, str]:
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return out.decode(), err.decode()


def test_run_ends_with_the_text_so_far(tiny: Path) -> None:
    process = start("run", "hello", "-m", tiny, "--ignore-eos", "--max-tokens", 30000)
    assert process.stdout is not None
    first = process.stdout.read(1)
    rest, err = interrupt(process)
    assert process.returncode == 130
    assert first
    assert rest.endswith("\n")
    assert err == "interrupted\n"


def test_compare_ends_with_what_was_finished(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    flags = ("--plan", STREAMING, "--length", 512, "--examples", 100_000, "--out", out, "--json")
    process = start("compare", "-m", tiny, *flags)
    assert process.stderr is not None
    assert b"answers" in process.stderr.readline()
    shown, err = interrupt(process)
    assert process.returncode == 130
    assert "Traceback" not in err
    document = json.loads(shown)
    assert document == json.loads(out.read_text(encoding="utf-8"))
    assert not document["complete"]
    assert [row["plan"] for row in document["summary"]] == ["full", STREAMING]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="tells what a process has loaded on Linux only")
@pytest.mark.parametrize("library", ["libtorch_cpu", "tokenizers", "llvmlite"])
def test_the_first_seconds(library: str, tiny: Path) -> None:
    """While libraries are imported and the model is loaded."""
    process = start("compare", "-m", tiny, "--plan", STREAMING, "--length", 512, "--examples", 100_000)
    while library not in Path(f"/proc/{process.pid}/maps").read_text():
        time.sleep(0.01)
    _, err = interrupt(process)
    assert process.returncode == 130
    assert "Traceback" not in err
