"""The edge: prompts, models, tasks and output paths from what was typed, checked before any work."""

import inspect
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from winnow.errors import InputError, MissingExtraError
from winnow.plan import Plan
from winnow.runtime.llm import LLM
from winnow.tasks import TASKS, Task, task


def read_prompt(prompt: str | None, file: Path | None, question: str | None) -> str:
    """The prompt: the argument, a file, or standard input; then a blank line and the question, if there is one.

    Line breaks at the very end of a file or of standard input are dropped.
    """
    if prompt is not None and file is not None:
        raise InputError("a PROMPT and --file are both given; use one, and --question for what follows a file")
    if prompt is not None:
        text = prompt
    elif file is not None:
        text = read_text(file)
    elif sys.stdin.isatty():
        raise InputError("there is no prompt; give it as an argument, with --file FILE, or through a pipe")
    else:
        text = _decode(sys.stdin.buffer.read(), "standard input").rstrip("\n")
    if not text.strip():
        raise InputError(f"the prompt{f' in {file}' if file else ''} is empty; give at least one word")
    return f"{text}\n\n{question}" if question else text


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, without line breaks at its end."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    return _decode(raw, str(path)).rstrip("\n")


def prompt_ids(llm: LLM, text: str, chat: bool | None) -> list[int]:
    """Token ids of the prompt, in the chat template where `chat` asks for it; None: where the tokenizer has one."""
    if llm.tokenizer is None:
        raise InputError("the model has no tokenizer, so it cannot read text; give a directory with a tokenizer.json")
    if chat is None:
        chat = bool(llm.tokenizer.chat_template)
    return llm.render([{"role": "user", "content": text}]) if chat else list(llm.tokenizer(text)["input_ids"])


def load_model(
    model: str,
    device: str | None,
    dtype: str | None,
    threads: int | None,
    prefill_chunk: int,
    adapter: str | None = None,
) -> LLM:
    """The model, loaded without chatter on standard error."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    if threads is not None:
        torch.set_num_threads(threads)
    return LLM(model, adapter=adapter, device=device, dtype=dtype, prefill_chunk=prefill_chunk)


def parse_plans(texts: Sequence[str] | None, default: Sequence[str] = ()) -> list[Plan]:
    """The plans, each once."""
    return list(dict.fromkeys(map(parse_plan, texts or default)))


def parse_plan(text: str) -> Plan:
    """A plan as text, or @FILE: one in a file, whose lines that begin with # are comments."""
    return Plan.parse(_plan_in(Path(text[1:])) if text.startswith("@") else text)


def _plan_in(path: Path) -> str:
    lines = [line for line in map(str.strip, read_text(path).splitlines()) if line and not line.startswith("#")]
    if not lines:
        raise InputError(f"{path} holds no plan; write one there, such as 'streaming(sink=4, recent=1024)'")
    return " ".join(lines)  # a plan may go over several lines


def make_tasks(names: Sequence[str], data: Path | None, haystack: Path | None) -> list[Task]:
    """The tasks, each once; `data` and `haystack` go to those that take them, of which there must be one."""
    tasks = [_task(name, data, haystack) for name in dict.fromkeys(names)]
    for option, value in {"data": data, "haystack": haystack}.items():
        if value is not None and not any(option in _parameters(task.name) for task in tasks):
            takers = ", ".join(name for name in TASKS if option in _parameters(name))
            raise InputError(f"--{option} is for {takers}; none of them is among the tasks")
    return tasks


def refuse(reason: str, options: Mapping[str, object]) -> None:
    """Raise InputError, with `reason`, where options are given that would be ignored."""
    if given := [name for name, value in options.items() if value not in (None, [])]:
        raise InputError(f"{', '.join(given)}: {reason}")


def check_outputs(out: Path | None, plot: Path | None) -> None:
    """Raise InputError where a path cannot be written, MissingExtraError where plots cannot be drawn."""
    for path in (out, plot):
        if path is not None:
            _check_writable(path)
    if plot is not None and find_spec("matplotlib") is None:
        raise MissingExtraError("--plot needs matplotlib; install winnow with its extra 'bench'")


def _task(name: str, data: Path | None, haystack: Path | None) -> Task:
    takes = _parameters(name)
    parameters = {"haystack": haystack} if "haystack" in takes and haystack is not None else {}
    if "data" not in takes:
        return task(name, **parameters)
    if data is None:
        raise InputError(f"task {name} reads real data; give the directory that holds it with --data DIR")
    own = data / name
    return task(name, data=own if own.is_dir() else data, **parameters)


def _parameters(name: str) -> Collection[str]:
    return inspect.signature(TASKS[name]).parameters if name in TASKS else ()


def _check_writable(path: Path) -> None:
    new = not path.exists()
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    if new:
        path.unlink()


def _decode(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 text (byte {error.start}); convert it first") from error
