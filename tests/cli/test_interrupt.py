"""Ctrl-C, as a real signal to a real process."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import forked

STREAMING = "streaming(sink=4, recent=64)"


def interrupt(process: subprocess.Popen[str]) -> tuple[str, str]:
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=60)


def test_run_ends_with_the_text_so_far(tiny: Path) -> None:
    flags = ["run", "hello", "-m", tiny, "--ignore-eos", "--max-tokens", 30000]
    process = forked.start(["-m", "winnow", *flags])
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
    process = forked.start(["-m", "winnow", "compare", "-m", tiny, *flags])
    assert process.stderr is not None
    assert "answers" in process.stderr.readline()
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
    flags = ["compare", "-m", tiny, "--plan", STREAMING, "--length", "512", "--examples", "100000"]
    process = subprocess.Popen(  # a Python of its own: forks have imported everything already
        [sys.executable, "-m", "winnow", *map(str, flags)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        # A parent started in the background ignores Ctrl-C, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while library not in Path(f"/proc/{process.pid}/maps").read_text():
        time.sleep(0.01)
    _, err = interrupt(process)
    assert process.returncode == 130
    assert "Traceback" not in err
