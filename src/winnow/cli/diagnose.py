"""`winnow diagnose`: what each layer does with the prompt under full attention, and where the prompt could stop; or how
steady the support of its attention is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from winnow.cli.commands.look import Layers, Support
from winnow.cli.deliver import Record, deliver
from winnow.cli.diagnose_plot import plot_diagnosis
from winnow.cli.diagnose_view import diagnosis_view
from winnow.cli.inputs import make_tasks, parse_plan, prompt_ids, read_prompt, refuse
from winnow.cli.options import EXAMPLES, TASKS
from winnow.cli.support_plot import plot_support
from winnow.cli.support_view import support_view
from winnow.cli.terminal import Meter, interruptible
from winnow.diagnosis.diagnose import diagnose_prompts, diagnose_tasks, summarise
from winnow.diagnosis.support import support_prompts, support_tasks
from winnow.diagnosis.support_figures import summarise_support
from winnow.errors import InputError, PlanError
from winnow.evaluation.evaluate import environment
from winnow.policies.read.dense import Dense
from winnow.policies.read.slowfast import SlowFast
from winnow.reading import json_lines
from winnow.runtime.llm import LLM
from winnow.sampling import SamplingParams


@dataclass(frozen=True)
class Kind:
    """One kind of diagnosis: what measures a prompt, what joins prompts, and how the result looks."""

    command: str
    of_tasks: Callable[..., Iterator[Any]]
    of_prompts: Callable[..., Iterator[Any]]
    summarise: Callable[..., Any]
    view: Callable[..., Any]
    plot: Callable[..., None]


def layers(options: Layers) -> int:
    """Where each layer's attention goes, and a cutoff; returns the exit code."""
    kind = Kind("diagnose layers", diagnose_tasks, diagnose_prompts, summarise, diagnosis_view, plot_diagnosis)
    return _diagnose(options, kind)


def support(options: Support) -> int:
    """How steady what a step attends to is; returns the exit code."""
    policy = _policy(options.plan, options.budget)
    of_tasks, of_prompts = partial(support_tasks, policy=policy), partial(support_prompts, policy=policy)
    kind = Kind("diagnose support", of_tasks, of_prompts, summarise_support, support_view, plot_support)
    return _diagnose(options, kind)


def _diagnose(options: Layers | Support, kind: Kind) -> int:
    settings: dict[str, Any] = {"max_tokens": options.max_tokens, "ignore_eos": options.ignore_eos}
    measure, prompts, work, llm, asked = (_of_tasks if options.file is None else _of_file)(options, kind)
    model, done = options.model_name, list[Any]()
    with Meter("diagnosing", work) as meter, interruptible():
        for each in measure(meter.advance):
            done.append(each)
            meter.note(f"{len(done)} of {prompts} prompts")
    found = kind.summarise(done) if done else None
    figures = found.to_dict() if found else {}
    shown = kind.view(found, model) if found else "no prompt was finished"
    draw = partial(kind.plot, found=found, model=model) if found else None
    about = {**settings, **asked, "seed": options.seed, **environment(llm, model)}
    return deliver(Record(kind.command, figures, shown, draw, len(done) == prompts, about), options)


Asked = tuple[Callable[..., Iterator[Any]], int, int, LLM, dict[str, Any]]  # measure, prompts, tokens, model, settings


def _of_tasks(options: Layers | Support, kind: Kind) -> Asked:
    about_file = {"--question": options.question, "--chat, --no-chat": options.chat, "--truncate": options.truncate}
    refuse("is about --file only", about_file)
    if len(options.lengths) > 1:
        raise InputError("a diagnosis takes one --length")
    tasks = make_tasks(options.task or TASKS, options.data, options.haystack)
    llm = options.load()
    [tokens], count = options.lengths, options.examples or EXAMPLES

    def measure(progress: Callable[[int], None]) -> Iterator[Any]:
        return kind.of_tasks(
            llm, tasks, tokens, count, max_tokens=options.max_tokens, ignore_eos=options.ignore_eos, seed=options.seed,
            progress=progress,
        )  # fmt: skip

    settings = {"tasks": [each.name for each in tasks], "length": tokens, "examples": count}
    return measure, count * len(tasks), count * len(tasks) * tokens, llm, settings


def _of_file(options: Layers | Support, kind: Kind) -> Asked:
    refuse("about tasks, not about --file", options.about_tasks)
    refuse("is not for a diagnosis, which looks at whole prompts", {"--truncate": options.truncate})
    texts = _prompts(options)
    llm = options.load()
    ids = [_ids(llm, each, options.chat) for each in texts]
    most = options.max_tokens or SamplingParams.max_tokens
    params = SamplingParams(max_tokens=most, ignore_eos=options.ignore_eos)

    def measure(progress: Callable[[int], None]) -> Iterator[Any]:
        return kind.of_prompts(llm, ids, params, progress=progress)

    settings = {"file": str(options.file), "question": options.question}
    return measure, len(ids), sum(map(len, ids)), llm, settings


def _policy(plan: str | None, budget: int | None) -> SlowFast | None:
    """How to select; None: as `support_tasks` says."""
    if plan is None:
        return None if budget is None else SlowFast(budget=budget)
    refuse("is a part of --plan; write slowfast(budget=...)", {"--budget": budget})
    chosen = parse_plan(plan)
    if not isinstance(chosen.read, SlowFast) or not replace(chosen, read=Dense()).is_full:
        raise PlanError(
            f"--plan {chosen}: `diagnose support` looks at full attention and asks when and what slowfast would "
            "select; give slowfast(...) alone"
        )
    return chosen.read


def _prompts(options: Layers | Support) -> list[str | list[dict[str, str]]]:
    """A text, or the prompts of JSON Lines: texts, or messages up to the user's last one."""
    file = options.file or Path()
    if file.suffix.lower() != ".jsonl":
        return [read_prompt(options).text]
    refuse("is for a text file; in .jsonl each prompt holds its own", {"--question": options.question})
    if not (rows := list(json_lines(file))):
        raise InputError(f'{file} holds no prompt; write one JSON object a line, such as {{"prompt": "..."}}')
    return [_prompt(row, where) for where, row in rows]


def _prompt(row: Any, where: str) -> str | list[dict[str, str]]:
    prompt, messages = (row.get(name) if isinstance(row, dict) else None for name in ("prompt", "messages"))
    if isinstance(prompt, str) and prompt.strip():
        return prompt
    if isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
        asked = [place for place, message in enumerate(messages) if message.get("role") == "user"]
        if asked:
            return messages[: asked[-1] + 1]
    raise InputError(f'{where} has neither a "prompt" that is text nor "messages" with one of the user')


def _ids(llm: LLM, prompt: str | list[dict[str, str]], chat: bool | None) -> list[int]:
    if isinstance(prompt, str):
        return prompt_ids(llm, prompt, chat)
    if chat is False:
        raise InputError("--no-chat cannot be used with messages, which the chat template renders; give prompts")
    return llm.render(prompt)
