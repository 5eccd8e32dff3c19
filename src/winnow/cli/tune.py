"""`winnow tune`: the plan to run for a model, prompts and limits."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from winnow.bench.evaluate import cases, check_lengths, environment
from winnow.cli import options
from winnow.cli.inputs import check_outputs, load_model, make_tasks, prompt_ids, refuse
from winnow.cli.run import Chat
from winnow.cli.terminal import Meter, interruptible, print_json, write_json, write_text
from winnow.cli.tune_plot import plot_tuning
from winnow.cli.tune_view import plan_file, show
from winnow.errors import InputError
from winnow.tune.clock import Clock
from winnow.tune.limits import DEFAULT_KL, Limits
from winnow.tune.prompts import own_cases, read_prompts
from winnow.tune.result import result_of
from winnow.tune.search import Tuning
from winnow.tune.state import Ledger, about

ANSWER_TOKENS = 32
EXAMPLES = 6
NO_PLAN = 1  # exit code where no plan keeps to the limits

Prompts = Annotated[
    Path | None,
    typer.Argument(metavar="[PROMPTS]", help="A directory of .txt and .md files, or JSON Lines.  [default: --task]"),
]
AnswerTokens = Annotated[
    int | None,
    typer.Option(min=2, help=f"The longest answer to PROMPTS that is looked at.  [default: {ANSWER_TOKENS}]"),
]
MaxKl = Annotated[
    float | None,
    typer.Option(metavar="NATS", help=f"KL from full attention.  [default: {DEFAULT_KL}, without --min-agreement]"),
]
MinAgreement = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Tokens on which plan and full attention agree, 0 to 1.")
]
MaxCache = Annotated[
    float | None,
    typer.Option(metavar="MIB", help="The most held for any prompt: all bytes, not only of keys and values."),
]
Ttft = Annotated[float | None, typer.Option(metavar="SECONDS", help="Median time to the first token.")]
Tpot = Annotated[float | None, typer.Option(metavar="SECONDS", help="Median time per token after it.")]
TimeLimit = Annotated[float, typer.Option(min=1, metavar="SECONDS", help="The command ends within it.")]
State = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Keep measurements there; the same command again goes on with them.")
]
OutPlan = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the recommended plan there, for --plan @FILE.")
]
Examples = Annotated[
    int | None, typer.Option("--examples", "-n", min=1, help="Examples of each task and length.  [default: 6]")
]


def tune(
    prompts: Prompts = None,
    max_kl: MaxKl = None,
    min_agreement: MinAgreement = None,
    max_cache_mib: MaxCache = None,
    target_ttft: Ttft = None,
    target_tpot: Tpot = None,
    time_limit: TimeLimit = 300.0,
    state: State = None,
    out_plan: OutPlan = None,
    answer_tokens: AnswerTokens = None,
    chat: Chat = None,
    task: options.Tasks = None,
    length: options.Lengths = None,
    examples: Examples = None,
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
) -> None:
    """Find the fastest plan that keeps to limits on prompts of yours; exit code 1 if there is none."""
    clock = Clock(time_limit)
    limits = Limits(
        max_kl=max_kl,
        min_agreement=min_agreement,
        max_cache_mib=max_cache_mib,
        target_ttft=target_ttft,
        target_tpot=target_tpot,
    )
    check_outputs(out, plot)
    check_outputs(out_plan, None)
    about_tasks = {"--task": task, "--length": length, "--examples": examples, "--data": data, "--haystack": haystack}
    if prompts is not None:
        refuse("about tasks, not about PROMPTS", about_tasks)
    else:
        refuse("about PROMPTS only", {"--answer-tokens": answer_tokens, "--chat": chat})
    written = None if prompts is None else read_prompts(prompts)
    tasks = make_tasks(task or options.TASKS, data, haystack) if written is None else []
    llm = load_model(model, device, dtype, threads, prefill_chunk, weights=weights)
    if llm.trained is not None:
        raise InputError(
            f"{options.named(model)} was trained to answer under the plan {llm.trained.plan}, not under full "
            "attention, which tune compares with; measure plans of it with `winnow eval`"
        )
    model = options.named(model)
    if written is None:
        lengths = list(dict.fromkeys(length or options.LENGTHS))
        check_lengths(llm, ["full"], lengths)
        made = list(cases(llm, tasks, lengths, examples or EXAMPLES, seed=seed))
    else:
        made = own_cases(llm, written, lambda text: prompt_ids(llm, text, chat), answer_tokens or ANSWER_TOKENS)
    for case in made:
        llm.check([case.ids], case.params, plan="full")
    tuning = Tuning(llm, made, limits, Ledger(state, about(llm, model, made)), clock, seed)
    if written is not None and len(made) < len(written):
        left = len(written) - len(made)
        tuning.skipped.append(f"{left} of {len(written)} prompts are longer than the model's positions and left out")
    complete = _run(tuning)
    result = result_of(tuning)
    document: dict[str, Any] = {"command": "tune", "complete": complete, **result.to_dict()}
    document |= {**environment(llm, model), "seed": seed}
    if out is not None:
        write_json(out, document)
    if plot is not None and result.tried:
        plot_tuning(plot, result)
    if complete and out_plan is not None and result.recommended is not None:
        write_text(out_plan, plan_file(result, model))
    if as_json:
        print_json(document)
    else:
        show(result, model, out_plan if complete else None)
    if not complete:
        print("interrupted; this is what was finished", file=sys.stderr)
        raise typer.Exit(130)
    if result.recommended is None:
        raise typer.Exit(NO_PLAN)


def _run(tuning: Tuning) -> bool:
    """Whether it came to its end, and was not interrupted."""
    complete, shown = False, 0
    with Meter("tuning", round(tuning.clock.limit_s)) as meter, interruptible():

        def note(text: str) -> None:
            nonlocal shown
            meter.advance(int(tuning.clock.elapsed_s) - shown)
            shown = int(tuning.clock.elapsed_s)
            meter.note(f"{text} ({tuning.clock.elapsed_s:.0f} of {tuning.clock.limit_s:.0f} s)")

        tuning.run(note)
        complete = True
    return complete
