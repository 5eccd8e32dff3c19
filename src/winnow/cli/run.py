"""`winnow run`: continue one prompt."""

import math
import sys
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from winnow.cli.command import INTERRUPTED
from winnow.cli.commands.prompts import Run
from winnow.cli.inputs import fitted_ids, parse_plan, read_prompt
from winnow.cli.inspect_model import report_of, weights_line
from winnow.cli.stats_view import stats_table
from winnow.cli.terminal import Meter, console, interruptible, print_json
from winnow.engine.request import Completion, Output
from winnow.evaluation.evaluate import environment
from winnow.plan import Plan
from winnow.runtime.llm import LLM


def run(options: Run) -> int:
    """Continue a prompt; returns the exit code."""
    asked, params = read_prompt(options), options.sampling
    wanted = None if options.plan is None else parse_plan(options.plan)
    llm = options.load()
    chosen = wanted or llm.plan
    ids = fitted_ids(llm, asked, options.chat, options.truncate, params.max_tokens, [chosen])
    [request] = llm.check([ids], params, plan=chosen)
    samples = [Said() for _ in range(params.n)]
    with (
        Meter("reading the prompt", len(ids)) as meter,
        interruptible(),
        llm.engine() as engine,
        closing(engine.follow(request, meter.advance)) as outputs,
    ):
        for output in outputs:
            samples[output.sample_index].take(output)
            if output.text:
                meter.stop()
                if params.n == 1 and not options.as_json:
                    print(output.text, end="", flush=True)
    if options.as_json:
        print_json(_document(options, llm, chosen, samples))
    else:
        _show(options, llm, chosen, samples)
    if not all(each.completion for each in samples):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


@dataclass
class Said:
    """What has come of a sample. completion: all of it, once it has ended."""

    text: str = ""
    completion: Completion | None = None

    def take(self, output: Output) -> None:
        self.text += output.text
        self.completion = output.completion

    def to_dict(self) -> dict[str, Any]:
        """Of one that was interrupted only the text is known."""
        ended = self.completion
        return {
            "text": self.text,
            "token_ids": ended.token_ids if ended else None,
            "finish_reason": ended.finish_reason if ended else None,
            "complete": ended is not None,
            **({"logprobs": ended.logprobs} if ended and ended.logprobs is not None else {}),
            "stats": ended.stats.to_dict() if ended else None,
        }


def _show(options: Run, llm: LLM, plan: Plan, samples: list[Said]) -> None:
    """What has not been printed yet."""
    for number, each in enumerate(samples, start=1):
        if len(samples) > 1:
            print(f"--- sample {number} of {len(samples)}")
            print(each.text)
        else:
            print()
        if each.completion is None:
            continue
        if options.sampling.logprobs is not None:
            console().print(_likeliest(llm, each.completion))
        if options.stats:
            console(stderr=True).print(stats_table(each.completion.stats, str(plan)))
    if options.stats and any(each.completion for each in samples):
        console(stderr=True).print(weights_line(report_of(llm)))


def _document(options: Run, llm: LLM, plan: Plan, samples: list[Said]) -> dict[str, Any]:
    about = {"plan": str(plan), **environment(llm, options.model_name), "adapter": options.adapter}
    of_each = {"samples": [each.to_dict() for each in samples]} if len(samples) > 1 else {}
    return {**samples[0].to_dict(), **of_each, **about, "seed": options.sampling.seed}


def _likeliest(llm: LLM, completion: Completion) -> Table:
    """A row per new token: itself and its probability, then the likeliest."""
    from winnow.cli.terminal import new_table

    table = new_table(None, "probabilities before temperature and other processors")
    for heading in ("token", "%", "likeliest"):
        table.add_column(heading, justify="right" if heading == "%" else "left")

    def said(token: int) -> str:
        return str(token) if llm.tokenizer is None else repr(str(llm.tokenizer.decode([token])))

    for token, found in zip(completion.token_ids, completion.logprobs or [], strict=True):
        likeliest = sorted((each for each in found if each != token), key=lambda each: -found[each])
        shown = ", ".join(f"{said(each)} {_percent(found[each])}" for each in likeliest)
        table.add_row(said(token), _percent(found[token]), shown)
    return table


def _percent(logprob: float) -> str:
    return f"{100 * math.exp(logprob):.1f}"
