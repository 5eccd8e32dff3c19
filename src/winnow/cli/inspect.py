"""`winnow inspect`: a page that walks through one generation, step by step, token by token, layer by layer."""

import json
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from winnow.bench.evaluate import environment
from winnow.cli import options
from winnow.cli.inputs import check_outputs, fitted_ids, load_model, parse_plan, read_prompt
from winnow.cli.inspect_plot import plot_retained
from winnow.cli.run import Chat, PromptFile, PromptText, Question
from winnow.cli.terminal import Meter, console, interruptible, new_table, print_json, write_text
from winnow.errors import InputError, MissingExtraError
from winnow.inspector.page import render
from winnow.inspector.recorder import Recorder
from winnow.inspector.trace import Step, Trace

SHOWN = 40  # steps in the table; of more, the first and the last ones
ENDING = 5

Out = Annotated[Path, typer.Option("--out", "--output", "-o", metavar="HTML", help="Write the page there.")]
Retained = Annotated[
    Path | None, typer.Option("--retained", metavar="PNG", help="Draw there what every layer and KV head kept.")
]
TraceFile = Annotated[Path | None, typer.Option("--trace", metavar="JSON", help="Write the trace there too.")]


def inspect(
    prompt: PromptText = None,
    file: PromptFile = None,
    question: Question = None,
    model: options.Model = None,
    plan: options.Plan = "lazyllm",
    max_tokens: Annotated[int, typer.Option(min=1, help="The most new tokens.")] = 32,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the model's stop tokens.")] = False,
    chat: Chat = None,
    truncate: options.Truncate = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    weights: options.Weights = "auto",
    prefill_chunk: options.PrefillChunk = None,
    out: Out = Path("trace.html"),
    trace: TraceFile = None,
    retained: Retained = None,
    as_json: options.Json = False,
) -> None:
    """Continue a prompt greedily and draw which tokens each layer computed, reused, set aside and revived.

    And, where the plan evicts units, which of them each KV head kept.
    """
    chosen = parse_plan(plan)
    _check_paths(out, trace, retained)
    if retained is not None and chosen.keep.identity:
        raise InputError(
            f"--retained draws which units stay, and plan {plan!r} evicts none; leave it out, or use a plan with a "
            "keep policy, such as locret (winnow plans lists them)"
        )
    asked = read_prompt(prompt, file, question)
    llm = load_model(model, device, dtype, threads, prefill_chunk, weights=weights)
    model = options.named(model)
    ids = fitted_ids(llm, asked, chat, truncate, max_tokens, [chosen])
    with Meter("tracing", len(ids) + max_tokens) as meter, interruptible():
        recorder = Recorder(llm, ids, plan=chosen, max_tokens=max_tokens, ignore_eos=ignore_eos, progress=meter.advance)
        for _ in recorder.steps():
            meter.advance(1)
    if not recorder.done:
        print("interrupted before the end of the prompt; there is nothing to show", file=sys.stderr)
        raise typer.Exit(130)
    found = recorder.trace()
    if trace is not None:
        write_text(trace, json.dumps(found.to_dict(), ensure_ascii=False, separators=(",", ":")) + "\n")
    write_text(out, render(found))
    if retained is not None:
        plot_retained(retained, found)
    if as_json:
        files = {"out": out, "trace": trace, "retained": retained}
        print_json(_record(found, files) | environment(llm, model))
    else:
        console().print(steps_table(found))
        console().print(f"wrote {out} ({out.stat().st_size / 1000:,.0f} kB); open it in a browser")
        if retained is not None:
            console().print(f"wrote {retained}")
    if found.finish_reason is None:
        print("interrupted; this is what was finished", file=sys.stderr)
        raise typer.Exit(130)


def steps_table(trace: Trace) -> Table:
    """What every step did, summed over the layers."""
    stats = trace.stats
    caption = f"rows computed: {_share(stats['rows_computed'], stats['rows_full'])} of full attention's"
    if stats["units_full"]:
        caption += f"; units read: {_share(stats['units_read'], stats['units_full'])}"
    paced = any(step.slow is not None for step in trace.steps)
    if paced:
        caption += f"; slow steps: {stats['slow_steps']} of {stats['slow_steps'] + stats['fast_steps']}"
    table = new_table(f"{trace.plan}, {trace.model}, {trace.prompt:,} prompt tokens", caption)
    for heading in ("step", "fed", "produced"):
        table.add_column(heading, no_wrap=True)
    for heading in ("rows computed", "revived", "units read", "set aside"):
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


def _record(trace: Trace, files: Mapping[str, Path | None]) -> dict[str, Any]:
    """The table's figures, and what they are about. files: what was written."""
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
        "command": "inspect",
        "plan": trace.plan,
        "complete": trace.finish_reason is not None,
        "finish_reason": trace.finish_reason,
        "text": trace.text,
        **{name: str(path) if path else None for name, path in files.items()},
        "stats": dict(trace.stats),
        "steps": steps,
    }


def _check_paths(out: Path, trace: Path | None, retained: Path | None) -> None:
    """Raise InputError, before any work, where a file cannot be written, MissingExtraError where it cannot be drawn."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out {out} is a web page and has to end in .html; --trace writes JSON")
    named = {"--out": out, "--trace": trace, "--retained": retained}
    for (one, path), (other, same) in combinations(named.items(), 2):
        if path is not None and same is not None and path.resolve() == same.resolve():
            raise InputError(f"{one} and {other} are both {path}; give two names")
    for path in named.values():
        check_outputs(path, None)
    if retained is not None and find_spec("matplotlib") is None:
        raise MissingExtraError("--retained needs matplotlib; install winnow with its extra 'bench'")
