"""`winnow eval`: how well a plan answers, by task, length and depth; or how close it stays to full attention."""

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from winnow.cli.commands.evaluate import Benchmark, Tasks, Text
from winnow.cli.compare_plot import plot_depths
from winnow.cli.deliver import Record as Delivered
from winnow.cli.deliver import deliver
from winnow.cli.evaluate_view import accuracy_table, benchmark_table, fidelity_table
from winnow.cli.inputs import make_tasks, parse_plans, prompt_ids
from winnow.cli.options import EXAMPLES, TASKS, AdapterOptions
from winnow.cli.terminal import Meter, collect, interruptible
from winnow.errors import InputError
from winnow.evaluation.accuracy import accuracies
from winnow.evaluation.compare import finished
from winnow.evaluation.evaluate import Progress, Record, environment, evaluate
from winnow.evaluation.fidelity import Fidelity, Perplexity, check_fidelity, fidelity, perplexity
from winnow.evaluation.published import dataset_scores, evaluate_benchmark
from winnow.plan import Plan
from winnow.reading import read_text
from winnow.runtime.llm import LLM
from winnow.tasks.benchmarks import BENCHMARKS, Question, questions

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


def tasks(options: Tasks) -> int:
    """Score plans on generated tasks; returns the exit code."""
    plans = parse_plans(options.plan)
    asked = make_tasks(options.task or TASKS, options.data, options.haystack)
    llm = options.load()
    plans, lengths, depths = plans or [llm.plan], options.lengths, list(dict.fromkeys(options.depth or DEPTHS))
    examples = options.examples or EXAMPLES
    of_length = examples * len(depths) * len(asked) * len(plans)
    answers = of_length * len(lengths)
    ask = partial(evaluate, llm, plans, asked, lengths, examples, seed=options.seed, depths=depths)
    records = collect("evaluating", sum(lengths) * of_length, f"{answers} answers", ask, len(plans))
    found = accuracies(finished(records, len(plans)), depths)
    figures = {"accuracy": [a.to_dict() for a in found], "records": [record.to_dict() for record in records]}
    draw = partial(plot_depths, accuracies=found) if found else None
    about = {**_about(llm, options), "seed": options.seed}
    shown, complete = accuracy_table(found, depths), len(records) == answers
    return deliver(Delivered("eval tasks", figures, shown, draw, complete, about), options)


def benchmark(options: Benchmark) -> int:
    """Score plans on a published benchmark, a row per dataset as in its paper's table; returns the exit code."""
    plans = parse_plans(options.plan)
    asked = _questions(options)
    llm = options.load()
    plans = plans or [llm.plan]
    answers = len(plans) * len(asked)

    def ask(progress: Progress) -> Iterator[Record]:
        for record in evaluate_benchmark(llm, plans, asked, length=options.length):
            yield record
            progress(1)  # of prompts of such different lengths, answers tell the time that is left

    records = collect("evaluating", answers, f"{answers} answers", ask)
    scores = dataset_scores(finished(records, len(plans)))
    figures = {"scores": [score.to_dict() for score in scores], "records": [record.to_dict() for record in records]}
    shown, complete = benchmark_table(scores), len(records) == answers
    return deliver(Delivered("eval benchmark", figures, shown, complete=complete, about=_about(llm, options)), options)


def text(options: Text) -> int:
    """Fidelity of plans on a text; without plans full attention's perplexity. Returns the exit code."""
    plans = parse_plans(options.plan)
    if not plans and options.prompt_tokens is not None:
        raise InputError("--prompt-tokens is for plans; a perplexity predicts every token after the first")
    written = read_text(options.file).rstrip("\n")
    llm = options.load()
    ids = prompt_ids(llm, written, chat=False)[: options.tokens]
    about = _about(llm, options)
    if not plans:
        return deliver(_perplexity(llm, ids, about), options)
    prompt_tokens = options.prompt_tokens or len(ids) // 2
    check_fidelity(llm, ids, [llm.prepare(plan) for plan in plans], prompt_tokens)
    return deliver(_fidelity(llm, plans, ids, prompt_tokens, about), options)


def _about(llm: LLM, options: AdapterOptions) -> dict[str, Any]:
    return {**environment(llm, options.model_name), "adapter": options.adapter}


def _questions(options: Benchmark) -> list[Question]:
    """Of every dataset the first ones, or all."""
    if options.name not in BENCHMARKS:
        raise InputError(f"no benchmark is called {options.name!r}; there are {', '.join(BENCHMARKS)}")
    asked = questions(options.name, options.data, options.task)
    groups = itertools.groupby(asked, key=lambda question: question.dataset)
    return [question for _, group in groups for question in itertools.islice(group, options.examples)]


def _fidelity(llm: LLM, plans: list[Plan], ids: list[int], prompt_tokens: int, about: dict[str, Any]) -> Delivered:
    def follow(progress: Progress) -> Iterator[Fidelity]:
        for plan in plans:
            yield fidelity(llm, ids, plan, prompt_tokens, progress=progress)

    found = collect("measuring fidelity", len(ids) * len(plans), f"{len(plans)} plans", follow)
    figures = {"fidelity": [each.to_dict() for each in found]}
    return Delivered("eval text", figures, fidelity_table(found), complete=len(found) == len(plans), about=about)


def _perplexity(llm: LLM, ids: list[int], about: dict[str, Any]) -> Delivered:
    found: list[Perplexity] = []
    with Meter("measuring perplexity", len(ids)) as meter, interruptible():
        found.append(perplexity(llm, ids, progress=meter.advance))
    lines = [f"perplexity {math.exp(p.nll):.4f}, {p.nll:.4f} nats per token, {p.tokens} tokens" for p in found]
    figures = {"perplexity": [each.to_dict() for each in found]}
    return Delivered("eval text", figures, "\n".join(lines), complete=bool(found), about=about)
