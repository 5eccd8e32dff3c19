"""`winnow inspect`: a page that walks through one generation, step by step, token by token, layer by layer."""

import json
from functools import partial
from typing import Any

from rich.table import Table

from winnow.cli.command import INTERRUPTED
from winnow.cli.commands.look import Inspect
from winnow.cli.deliver import Record, deliver
from winnow.cli.inputs import fitted_ids, parse_plan, read_prompt
from winnow.cli.inspect_plot import plot_retained
from winnow.cli.options import JsonOptions
from winnow.cli.terminal import Meter, console, interruptible, new_table, say, write_text
from winnow.cli.words import explained
from winnow.errors import InputError
from winnow.evaluation.evaluate import environment
from winnow.inspector.page import render
from winnow.inspector.recorder import Recorder
from winnow.inspector.trace import Step, Trace
from winnow.plan import Plan

PLAN = "lazyllm"  # it has all to show: tokens that are computed, parked, revived
SHOWN = 40  # steps in the table; of more, the first and the last ones
ENDING = 5


def inspect(options: Inspect) -> int:
    """Trace one generation and draw it; returns the exit code."""
    chosen = None if options.plan is None else parse_plan(options.plan)
    if options.out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out {options.out} is a web page and has to end in .html; --trace writes JSON")
    if options.retained is not None and (chosen is None or chosen.keep.identity):
        raise InputError(
            f"--retained draws which units stay, and plan {options.plan or PLAN!r} evicts none; leave it out, or use "
            "a plan with a keep policy, such as locret (winnow plans lists them)"
        )
    asked = read_prompt(options)
    llm, most = options.load(), options.max_tokens
    chosen = chosen or (Plan.parse(PLAN) if llm.plan.is_full else llm.plan)
    ids = fitted_ids(llm, asked, options.chat, options.truncate, most, [chosen])
    with Meter("tracing", len(ids) + most) as meter, interruptible():
        recorder = Recorder(
            llm, ids, plan=chosen, max_tokens=most, ignore_eos=options.ignore_eos, progress=meter.advance
        )
        for _ in recorder.steps():
            meter.advance(1)
    if not recorder.done:
        say("interrupted before the end of the prompt; there is nothing to show")
        return INTERRUPTED
    found = recorder.trace()
    _write(found, options)
    about = {**environment(llm, options.model_name), "adapter": options.adapter}
    complete = found.finish_reason is not None
    record = Record("inspect", _figures(found, options), partial(_show, found, options), None, complete, about)
    return deliver(record, JsonOptions(as_json=options.as_json))


def _write(trace: Trace, options: Inspect) -> None:
    if options.trace is not None:
        text = json.dumps(trace.to_dict(), ensure_ascii=False, separators=(",", ":"))
        write_text(options.trace, text + "\n")
    write_text(options.out, render(trace))
    if options.retained is not None:
        plot_retained(options.retained, trace)


def _show(trace: Trace, options: Inspect) -> None:
    console().print(steps_table(trace))
    console().print(f"wrote {options.out} ({options.out.stat().st_size / 1000:,.0f} kB); open it in a browser")
    if options.retained is not None:
        console().print(f"wrote {options.retained}")


def steps_table(trace: Trace) -> Table:
    """What every step did, summed over the layers."""
    stats, paced = trace.stats, any(step.slow is not None for step in trace.steps)
    note = f"rows computed: {_share(stats['rows_computed'], stats['rows_full'])} of full attention's"
    if stats["units_full"]:
        note += f"; units read: {_share(stats['units_read'], stats['units_full'])}"
    if paced:
        note += f"; slow steps: {stats['slow_steps']} of {stats['slow_steps'] + stats['fast_steps']}"
    names, figures = ("step", "fed", "produced"), ("rows computed", "revived", "units read", "parked")
    title = f"{trace.plan}, {trace.model}, {trace.prompt:,} prompt tokens"
    table = new_table(title, explained([*figures, *(["slow step"] if paced else [])], note))
    for heading in names:
        table.add_column(heading, no_wrap=True)
    for heading in figures:
        table.add_column(heading, justify="right")
    if paced:
        table.add_column("")
    for number, step in enumerate(trace.steps):
        if len(trace.steps) > SHOWN and SHOWN - ENDING <= number < len(trace.steps) - ENDING:
            if number == SHOWN - ENDING:
                table.add_row("…")
            continue
        table.add_row(str(number), *_cells(trace, step))
    return table


def _cells(trace: Trace, step: Step) -> list[str]:
    prefill = step.phase == "prefill"
    fed = "the prompt" if prefill else repr(trace.tokens[step.fed[0]].text)
    read = "-" if prefill else f"{step.units_read:,}"
    produced = repr(trace.tokens[step.produced].text)
    pace = [] if step.slow is None else ["slow" if step.slow else "fast"]
    return [fed, produced, f"{step.rows:,}", f"{step.revived_rows:,}", read, f"{step.aside:,}", *pace]


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %"


def _figures(trace: Trace, options: Inspect) -> dict[str, Any]:
    """The table's figures, and what was written."""
    files = {"out": options.out, "trace": options.trace, "retained": options.retained}
    steps = [
        {
            "phase": step.phase,
            "fed": list(step.fed),
            "produced": trace.tokens[step.produced].text,
            "rows_computed": step.rows,
            "rows_full": step.rows_full,
            "revived_rows": step.revived_rows,
            "units_read": step.units_read,
            "units_full": step.units_full,
            "aside": step.aside,
            "slow": step.slow,
        }
        for step in trace.steps
    ]
    return {
        "plan": trace.plan,
        "finish_reason": trace.finish_reason,
        "text": trace.text,
        **{name: str(path) if path else None for name, path in files.items()},
        "stats": dict(trace.stats),
        "steps": steps,
    }
