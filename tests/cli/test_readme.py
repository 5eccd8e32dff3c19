"""The README says what there is, and its Python runs."""

import re
import shlex
from importlib import resources
from pathlib import Path

import pytest

from winnow.cli.main import app
from winnow.policies.registry import POLICIES
from winnow.tasks import TASKS

NEEDLE = resources.files("winnow") / "assets" / "needle" / "config.json"
README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("name", [*POLICIES, *TASKS])
def test_every_policy_and_task_is_named(name):
    assert f"`{name}" in README


def test_the_options_it_shows_exist():
    shown = [line.split("#")[0] for block in blocks("sh") for line in block.splitlines() if line.startswith("winnow ")]
    assert len(shown) >= 6
    for line in shown:
        _, command, _ = app.parse_commands(shlex.split(line)[1:])
        arguments = command[-1].assemble_argument_collection()
        known = {name for argument in arguments for name in argument.names}
        assert set(re.findall(r"--[a-z-]+", line)) <= known, line


@pytest.mark.skipif(not NEEDLE.is_file(), reason="the bundled model is absent")
def test_its_python_runs(capsys):
    first, second = blocks("python")
    names: dict[str, object] = {}
    exec(compile(first, "README.md", "exec"), names)
    assert "streaming(sink=4, recent=1024)" in capsys.readouterr().out
    exec(compile(second, "README.md", "exec"), names)
    assert capsys.readouterr().out.count("\n2 ") > 1
