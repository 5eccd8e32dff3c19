"""Ctrl-C, as a real signal to a real process."""

import json
import signal
import subprocess
from pathlib import Path

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
