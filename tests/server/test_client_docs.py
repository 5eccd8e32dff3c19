"""The programs of docs/clients.md, as they stand there, against a live server.

Each is run by what has its client: this Python, or one of those that WINNOW_TEST_CLIENTS names
('DIR/bin/python DIR/bin/python'); node finds openai in NODE_PATH.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```(python|js|sh)\n(.*?)```", PAGE, re.DOTALL)
PYTHONS = [sys.executable, *os.environ.get("WINNOW_TEST_CLIENTS", "").split()]
CLEAN = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OPENAI_API_KEY")}


@pytest.mark.parametrize(("language", "program"), PROGRAMS, ids=["openai", "node", "langchain", "llamaindex", "llm"])
def test_a_program_of_the_page_runs(live, tmp_path, language, program):
    url, _ = live
    for said, here in (("http://127.0.0.1:8000", url), ("KEY", "secret"), ("smollm2", "tiny")):
        assert said in program
        program = program.replace(said, here)
    command = {"python": of_python, "js": of_node, "sh": of_llm}[language](program, tmp_path)
    env = {**CLEAN, "LLM_USER_PATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert ("tiny" if language == "sh" else "streaming(sink=4, recent=1024)") in done.stdout  # models; usage.winnow


def of_python(program, folder):
    """The first Python that has what the program imports."""
    [module] = set(
        re.findall(r"^from (openai|langchain_openai|llama_index\.llms\.openai_like) ", program, re.MULTILINE)
    )
    for python in PYTHONS:
        if not subprocess.run([python, "-c", f"import {module}"], capture_output=True, env=CLEAN).returncode:
            return [python, "-c", program]
    pytest.skip(f"no Python has {module}: name one in WINNOW_TEST_CLIENTS")


def of_node(program, folder):
    modules = [place for place in os.environ.get("NODE_PATH", "").split(os.pathsep) if Path(place, "openai").is_dir()]
    if shutil.which("node") is None or not modules:
        pytest.skip("there is no node, or no openai in NODE_PATH: npm install --prefix DIR openai@6")
    (folder / "node_modules").symlink_to(modules[0])  # what is imported is not looked for in NODE_PATH
    (folder / "program.mjs").write_text(program, encoding="utf-8")
    return ["node", "program.mjs"]


def of_llm(program, folder):
    places = os.pathsep.join([*(os.path.dirname(python) for python in PYTHONS), os.environ["PATH"]])
    if (llm := shutil.which("llm", path=places)) is None:
        pytest.skip("there is no llm: name a Python beside it in WINNOW_TEST_CLIENTS")
    return ["bash", "-euo", "pipefail", "-c", re.sub(r"\bllm (?=openai)", f"{llm} ", program)]
