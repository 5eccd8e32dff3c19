"""`winnow bench fidelity`: how close plans stay to full attention on real texts, by domain."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from winnow.bench.__main__ import machine
from winnow.bench.compare import with_full
from winnow.bench.evaluate import environment
from winnow.bench.fidelity_by_domain import (
    DomainRow,
    Interval,
    Measured,
    equal_plans,
    fidelity_by_domain,
    summarise_domains,
)
from winnow.bench.windows import Window, windows
from winnow.cli import options
from winnow.cli.bench_view import Found, Length, deliver
from winnow.cli.fidelity_plot import plot_domains
from winnow.cli.inputs import check_outputs, load_model, parse_plans, refuse
from winnow.cli.terminal import Meter, interruptible, new_table
from winnow.errors import InputError
from winnow.plan import Plan
from winnow.tasks.texts import SOURCES

FED = 128
SHARE = 16  # the budget is the length over this

Data = Annotated[Path, typer.Option("--data", metavar="DIR", help=f"Texts by domain: {', '.join(SOURCES)}.")]
Domains = Annotated[
    list[str] | None,
    typer.Option("--domain", metavar="DOMAIN", help="Repeatable.  [default: all that the directory holds]"),
]
Windows = Annotated[int, typer.Option("--examples", "-n", min=1, help="Windows of each domain.")]
Fed = Annotated[int, typer.Option(min=2, help="Last tokens of a window, fed one by one; the others are prefilled.")]
Budget = Annotated[
    int | None,
    typer.Option(min=1, help=f"Units that every default plan keeps or reads.  [default: the length over {SHARE}]"),
]


def fidelity(
    data: Data,
    plan: options.Plans = None,
    budget: Budget = None,
    length: Length = 4096,
    fed: Fed = FED,
    examples: Windows = 4,
    domain: Domains = None,
    model: options.Model = None,
    adapter: options.Adapter = None,
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
    """Divergence from full attention, agreement and perplexity on the same windows of texts for all plans.

    Without --plan: every policy that has a budget, all at the same one.
    """
    if fed >= length:
        raise InputError(f"--fed {fed} must be less than --length {length}: the others are the prompt")
    if plan:
        refuse("is about the default plans; a --plan names its own budget", {"--budget": budget})
    plans = with_full(parse_plans(plan) or equal_plans(budget or max(1, length // SHARE)))
    check_outputs(out, plot)
    llm = load_model(model, device, dtype, threads, prefill_chunk, adapter, weights)
    model = options.named(model)
    if llm.tokenizer is None:
        raise InputError("the model has no tokenizer, so it cannot read text; give a directory with a tokenizer.json")
    chosen = windows(data, llm.tokenizer, length, examples, domains=domain or (), seed=seed)
    measured: list[Measured] = []
    with Meter("measuring fidelity", len(chosen) * length * len(plans)) as meter, interruptible():
        for number, found in enumerate(fidelity_by_domain(llm, plans, chosen, length - fed, progress=meter.advance), 1):
            measured += found
            meter.note(f"{number} of {len(chosen)} windows")
    rows = summarise_domains(measured)
    figures: dict[str, Any] = {"summary": [row.to_dict() for row in rows]}
    figures |= {"records": [each.to_dict() for each in measured], "length": length, "fed": fed}
    shown = _tables(rows, plans, chosen, f"{model}, {length - fed:,} tokens prefilled, {fed} fed")
    complete = len(measured) == len(chosen) * len(plans)
    draw = (lambda path: plot_domains(path, rows)) if any(row.plan != "full" for row in rows) else None
    about = {**environment(llm, model), "machine": machine(llm.device), "adapter": adapter, "seed": seed}
    deliver(Found("fidelity", complete, figures, shown, draw), about, as_json, out, plot)


COLUMNS = ("KL", "95 %", "top-1\n%", "95 %", "NLL", "perplexity", "rows\n%", "memory\n%", "units\nread\n%")
CAPTION = (
    "KL(full || plan) of the next token and NLL of the text, nats per token; top-1: both find the same token "
    "likeliest; 95 %: windows resampled; rows computed, units read and the most bytes held, "
    "of units and all that a plan holds beside them: of full attention's"
)


def _tables(rows: Sequence[DomainRow], plans: Sequence[Plan], chosen: Sequence[Window], title: str) -> RenderableType:
    """A table per domain and one of all, a row per plan."""
    tables = []
    for domain in dict.fromkeys(row.domain for row in rows):
        here = [row for row in rows if row.domain == domain]
        table = new_table(f"{domain}: {title}, {here[0].windows} windows", CAPTION)
        table.add_column("plan", overflow="fold", min_width=18)
        for heading in COLUMNS:
            table.add_column(heading, justify="right", no_wrap=True)
        for row in here:
            table.add_row(row.plan, *cells(row))
        tables.append(table)
    return Group(*tables) if tables else f"none of {len(chosen)} windows was finished under all {len(plans)} plans"


def cells(row: DomainRow) -> list[str]:
    """The figures of a row, one for each of `COLUMNS`."""
    shares = (row.rows_share, row.total_share, row.units_share)
    return [
        f"{row.kl.mean:.4f}",
        _range(row.kl, 1, 3),
        f"{100 * row.top1.mean:.1f}",
        _range(row.top1, 100, 0),
        f"{row.nll_plan.mean:.3f}",
        f"{row.perplexity:.2f}",
        *(f"{100 * share:.1f}" for share in shares),
    ]


def _range(interval: Interval, scale: float, digits: int) -> str:
    return f"{scale * interval.low:.{digits}f}-{scale * interval.high:.{digits}f}"
