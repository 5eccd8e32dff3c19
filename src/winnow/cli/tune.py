"""`winnow tune`: the plan to run for a model, prompts and limits."""

from functools import partial

from winnow.cli.commands.compare import Tune
from winnow.cli.deliver import Record, deliver
from winnow.cli.inputs import make_tasks, prompt_ids, refuse
from winnow.cli.options import TASKS
from winnow.cli.terminal import Meter, interruptible, write_text
from winnow.cli.tune_plot import plot_tuning
from winnow.cli.tune_view import plan_file, show
from winnow.errors import InputError
from winnow.evaluation.evaluate import Case, cases, check_lengths, environment
from winnow.runtime.llm import LLM
from winnow.tasks import Task
from winnow.tune.clock import Clock
from winnow.tune.prompts import Written, own_cases, read_prompts
from winnow.tune.result import result_of
from winnow.tune.search import Tuning
from winnow.tune.state import Ledger, about

ANSWER_TOKENS = 32
EXAMPLES = 6
NO_PLAN = 1  # exit code where no plan keeps to the limits


def tune(options: Tune) -> int:
    """Search; returns the exit code."""
    clock = Clock(options.time_limit)
    if options.prompts is not None:
        refuse("about tasks, not about PROMPTS", options.about_tasks)
    else:
        refuse("about PROMPTS only", {"--answer-tokens": options.answer_tokens, "--chat": options.chat})
    written = None if options.prompts is None else read_prompts(options.prompts)
    tasks = make_tasks(options.task or TASKS, options.data, options.haystack) if written is None else []
    llm, model = options.load(), options.model_name
    if options.adapter is not None:
        model = f"{model} with {options.adapter}"
    trained = None if llm.trained is None else llm.trained.plan
    if trained is not None and not trained.is_full:
        raise InputError(
            f"{model} was trained to answer under the plan {trained}, not under full attention, which tune "
            "compares with; measure plans of it with `winnow eval`"
        )
    made = _cases(llm, options, tasks, written)
    tuning = Tuning(llm, made, options.limits, Ledger(options.state, about(llm, model, made)), clock, options.seed)
    if written is not None and len(made) < len(written):
        left = len(written) - len(made)
        tuning.skipped.append(f"{left} of {len(written)} prompts are longer than the model's positions and left out")
    complete = _run(tuning)
    result = result_of(tuning)
    out_plan = options.out_plan if complete else None
    if out_plan is not None and result.recommended is not None:
        write_text(out_plan, plan_file(result, model))
    return deliver(
        Record(
            "tune",
            result.to_dict(),
            partial(show, result, model, out_plan),
            partial(plot_tuning, result=result) if result.tried else None,
            complete,
            {**environment(llm, options.model_name), "adapter": options.adapter, "seed": options.seed},
            NO_PLAN if complete and result.recommended is None else 0,
        ),
        options,
    )


def _cases(llm: LLM, options: Tune, tasks: list[Task], written: list[Written] | None) -> list[Case]:
    """What to answer, known to fit the model."""
    if written is None:
        check_lengths(llm, ["full"], options.lengths)
        made = list(cases(llm, tasks, options.lengths, options.examples or EXAMPLES, seed=options.seed))
    else:
        most = options.answer_tokens or ANSWER_TOKENS
        made = own_cases(llm, written, lambda text: prompt_ids(llm, text, options.chat), most)
    for case in made:
        llm.check([case.ids], case.params, plan="full")
    return made


def _run(tuning: Tuning) -> bool:
    """Whether it came to its end, and was not interrupted."""
    complete, shown_s = False, 0.0
    with Meter("tuning", tuning.clock.limit_s) as meter, interruptible():

        def note(text: str) -> None:
            nonlocal shown_s
            elapsed_s = tuning.clock.elapsed_s
            meter.advance(elapsed_s - shown_s)
            shown_s = elapsed_s
            meter.note(f"{text} ({elapsed_s:.0f} of {tuning.clock.limit_s:.0f} s)")

        tuning.run(note)
        complete = True
    return complete
