"""`winnow run`: continue one prompt."""

import math
import sys
from typing import Any

from rich.table import Table

from winnow.cli.command import INTERRUPTED
from winnow.cli.commands.prompts import Run
from winnow.cli.inputs import fitted_ids, parse_plan, read_prompt
from winnow.cli.inspect_model import report_of, weights_line
from winnow.cli.stats_view import stats_table
from winnow.cli.terminal import Meter, console, interruptible, print_json
from winnow.engine.request import Completion
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
    ended: list[Completion] = []
    pieces: list[str] = []
    with Meter("reading the prompt", len(ids)) as meter, interruptible():
        if params.n > 1:
            ended = llm.generate([ids], params, plan=chosen, progress=meter.advance)
            _print_samples(ended, options.as_json)
        else:
            for piece in llm.stream(ids, params, plan=chosen, progress=meter.advance, on_finish=ended.append):
                meter.stop()
                pieces.append(piece)
                if not options.as_json:
                    print(piece, end="", flush=True)
    if options.as_json:
        print_json(_document(options, llm, chosen, ended, pieces))
    elif params.n == 1:
        print()
    if params.logprobs is not None and ended and not options.as_json:
        console().print(_likeliest(llm, ended[0]))
    if options.stats and ended:
        console(stderr=True).print(stats_table(ended[0].stats, str(chosen)))
        console(stderr=True).print(weights_line(report_of(llm)))
    if not ended:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


def _print_samples(ended: list[Completion], as_json: bool) -> None:
    for number, each in enumerate(ended if not as_json else [], start=1):
        print(f"--- sample {number} of {len(ended)}")
        print(each.text)


def _document(options: Run, llm: LLM, plan: Plan, ended: list[Completion], pieces: list[str]) -> dict[str, Any]:
    about = {"plan": str(plan), **environment(llm, options.model_name), "adapter": options.adapter}
    first = _record(pieces, ended[0] if ended else None)
    if options.sampling.n > 1:
        first["samples"] = [_record([], each) for each in ended]
    return {**first, **about, "seed": options.sampling.seed}


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


def _record(pieces: list[str], completion: Completion | None) -> dict[str, Any]:
    """What was generated; of an interrupted run only the text is known."""
    known = completion is not None and completion.logprobs is not None
    return {
        "text": completion.text if completion else "".join(pieces),
        "token_ids": completion.token_ids if completion else None,
        "finish_reason": completion.finish_reason if completion else None,
        "complete": completion is not None,
        **({"logprobs": completion.logprobs} if completion and known else {}),
        "stats": completion.stats.to_dict() if completion else None,
    }
