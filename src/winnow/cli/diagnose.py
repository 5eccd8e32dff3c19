"""`winnow diagnose`: what each layer does with the prompt under full attention, and where the prompt could stop; or how
steady the support of its attention is."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from winnow.bench.diagnose import diagnose_prompts, diagnose_tasks, summarise
from winnow.bench.evaluate import Progress, environment
from winnow.bench.support import SHARE, support_prompts, support_tasks
from winnow.bench.support_figures import summarise_support
from winnow.cli import options
from winnow.cli.diagnose_plot import plot_diagnosis
from winnow.cli.diagnose_view import diagnosis_view
from winnow.cli.inputs import (
    check_outputs,
    load_model,
    make_tasks,
    parse_plan,
    prompt_ids,
    read_prompt,
    refuse,
)
from winnow.cli.run import Chat, Question
from winnow.cli.support_plot import plot_support
from winnow.cli.support_view import support_view
from winnow.cli.terminal import Meter, console, interruptible, print_json, write_json
from winnow.errors import InputError, PlanError
from winnow.plan import Plan
from winnow.policies.read.slowfast import SlowFast
from winnow.reading import json_lines
from winnow.runtime.llm import LLM
from winnow.runtime.sampling import SamplingParams

LENGTH = 4096

File = Annotated[
    Path | None,
    typer.Option(
        "--file", "-f", metavar="FILE",
        help="Instead of tasks: your own text, or with .jsonl a prompt a line (a field prompt or messages).",
    ),
]  # fmt: skip
Length = Annotated[
    int | None, typer.Option("--length", "-l", metavar="TOKENS", min=1, help=f"Prompt length.  [default: {LENGTH}]")
]
MaxTokens = Annotated[
    int | None,
    typer.Option(min=2, help=f"The longest answer.  [default: the task's own limit; {SamplingParams.max_tokens}]"),
]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on past the model's stop tokens.")]
Support = Annotated[
    bool,
    typer.Option(
        "--support",
        help="Instead: how much of what a step attends to the steps after it attend to too, by layer and KV head.",
    ),
]
SlowFastPlan = Annotated[
    str | None,
    typer.Option("--plan", "-p", metavar="PLAN", help='With --support: when and how to select, "slowfast(...)".'),
]
Budget = Annotated[
    int | None,
    typer.Option(min=1, metavar="UNITS", help=f"With --support: its budget.  [default: 1/{SHARE} of the prompt]"),
]


@dataclass(frozen=True)
class Kind:
    """One kind of diagnosis: what measures a prompt, what joins prompts, and how the result looks."""

    of_tasks: Callable[..., Iterator[Any]]
    of_prompts: Callable[..., Iterator[Any]]
    summarise: Callable[..., Any]
    view: Callable[..., Any]
    plot: Callable[..., None]


def diagnose(
    task: options.Tasks = None,
    length: Length = None,
    examples: options.Examples = None,
    file: File = None,
    question: Question = None,
    chat: Chat = None,
    max_tokens: MaxTokens = None,
    ignore_eos: IgnoreEos = False,
    data: options.Data = None,
    haystack: options.Haystack = None,
    model: options.Model = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    weights: options.Weights = "auto",
    prefill_chunk: options.PrefillChunk = None,
    as_json: options.Json = False,
    out: options.Out = None,
    plot: options.Plot = None,
    support: Support = False,
    plan: SlowFastPlan = None,
    budget: Budget = None,
) -> None:
    """Where each layer's attention goes, how sharply it reads the prompt, how straight hidden states run; a cutoff.

    Answers greedily under full attention, and recommends at which layer the prompt could stop (`speed`). With --support
    it says how steady what a step attends to is, which is what `slowfast` lives on.
    """
    check_outputs(out, plot)
    kind = _kind(support, plan, budget)
    settings: dict[str, Any] = {"support": support, "max_tokens": max_tokens, "ignore_eos": ignore_eos, "seed": seed}
    if file is None:
        refuse("is about --file only", {"--question": question, "--chat, --no-chat": chat})
        tasks = make_tasks(task or options.TASKS, data, haystack)
        llm = load_model(model, device, dtype, threads, prefill_chunk, weights=weights)
        tokens, count = length or LENGTH, examples or options.EXAMPLES
        settings |= {"tasks": [each.name for each in tasks], "length": tokens, "examples": count}
        prompts, work = count * len(tasks), count * len(tasks) * tokens

        def measure(progress: Progress) -> Iterator[Any]:
            return kind.of_tasks(
                llm, tasks, tokens, count, max_tokens=max_tokens, ignore_eos=ignore_eos, seed=seed, progress=progress
            )
    else:
        about_tasks = {"--task": task, "--length": length, "--examples": examples, "--data": data}
        refuse("about tasks, not about --file", {**about_tasks, "--haystack": haystack})
        texts = _prompts(file, question)
        llm = load_model(model, device, dtype, threads, prefill_chunk, weights=weights)
        ids = [_ids(llm, each, chat) for each in texts]
        settings |= {"file": str(file), "question": question}
        prompts, work = len(ids), sum(map(len, ids))
        params = SamplingParams(max_tokens=max_tokens or SamplingParams.max_tokens, ignore_eos=ignore_eos)

        def measure(progress: Progress) -> Iterator[Any]:
            return kind.of_prompts(llm, ids, params, progress=progress)

    model, done = options.named(model), list[Any]()
    with Meter("diagnosing", work) as meter, interruptible():
        for each in measure(meter.advance):
            done.append(each)
            meter.note(f"{len(done)} of {prompts} prompts")
    found = kind.summarise(done) if done else None
    document = {"command": "diagnose", "complete": len(done) == prompts, **(found.to_dict() if found else {})}
    document |= {**settings, **environment(llm, model)}
    if out is not None:
        write_json(out, document)
    if plot is not None and found is not None:
        kind.plot(plot, found, model)
    if as_json:
        print_json(document)
    else:
        console().print(kind.view(found, model) if found else "no prompt was finished")
    if len(done) < prompts:
        print("interrupted; this is what was finished", file=sys.stderr)
        raise typer.Exit(130)


def _kind(support: bool, plan: str | None, budget: int | None) -> Kind:
    if not support:
        refuse("is about --support only", {"--plan": plan, "--budget": budget})
        return Kind(diagnose_tasks, diagnose_prompts, summarise, diagnosis_view, plot_diagnosis)
    policy = _policy(plan, budget)
    of_tasks, of_prompts = partial(support_tasks, policy=policy), partial(support_prompts, policy=policy)
    return Kind(of_tasks, of_prompts, summarise_support, support_view, plot_support)


def _policy(plan: str | None, budget: int | None) -> SlowFast | None:
    """How to select; None: as `support_tasks` says."""
    if plan is None:
        return None if budget is None else SlowFast(budget=budget)
    refuse("is a part of --plan; write slowfast(budget=...)", {"--budget": budget})
    chosen = parse_plan(plan)
    if not isinstance(chosen.read, SlowFast) or not Plan(chosen.compute, chosen.keep, store=chosen.store).is_full:
        raise PlanError(
            f"--plan {chosen}: --support looks at full attention and asks when and what slowfast would select; give "
            "slowfast(...) alone"
        )
    return chosen.read


def _prompts(file: Path, question: str | None) -> list[str | list[dict[str, str]]]:
    """A text, or the prompts of JSON Lines: texts, or messages up to the user's last one."""
    if file.suffix.lower() != ".jsonl":
        return [read_prompt(None, file, question).text]
    refuse("is for a text file; in .jsonl each prompt holds its own", {"--question": question})
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
