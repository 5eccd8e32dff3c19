"""`python -m benchmarks fidelity`: how close plans stay to full attention on real texts, by domain."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from rich.console import Group, RenderableType

from benchmarks.commands.models import Fidelity
from benchmarks.fidelity_by_domain import DomainRow, Interval, equal_plans, fidelity_by_domain, summarise_domains
from benchmarks.fidelity_plot import plot_domains
from benchmarks.record import Record, about
from benchmarks.windows import Window, windows
from winnow import Plan
from winnow.cli.deliver import deliver
from winnow.cli.inputs import parse_plans, refuse
from winnow.cli.terminal import collect, new_table
from winnow.errors import InputError
from winnow.evaluation.compare import with_full

SHARE = 16  # the budget is the length over this


def fidelity(options: Fidelity) -> int:
    """Measure plans on windows of texts; returns the exit code."""
    length, fed, name = options.length, options.fed, options.model_name
    if fed >= length:
        raise InputError(f"--fed {fed} must be less than --length {length}: the others are the prompt")
    if options.plan:
        refuse("is about the default plans; a --plan names its own budget", {"--budget": options.budget})
    plans = with_full(parse_plans(options.plan) or equal_plans(options.budget or max(1, length // SHARE)))
    llm = options.load()
    chosen = windows(options.data, llm.tokenizer, length, options.examples, domains=options.domain, seed=options.seed)
    measure = partial(fidelity_by_domain, llm, plans, chosen, length - fed)
    total = len(chosen) * length * len(plans)
    found = collect("measuring fidelity", total, f"{len(chosen)} windows", measure)
    measured = [each for window in found for each in window]
    rows = summarise_domains(measured)
    figures: dict[str, Any] = {"summary": [row.to_dict() for row in rows]}
    figures |= {"records": [each.to_dict() for each in measured], "length": length, "fed": fed}
    shown = _tables(rows, plans, chosen, f"{name}, {length - fed:,} tokens prefilled, {fed} fed")
    draw = partial(plot_domains, rows=rows) if any(row.plan != "full" for row in rows) else None
    settings = about(llm, name, adapter=options.adapter, seed=options.seed)
    return deliver(Record("fidelity", figures, shown, draw, len(found) == len(chosen), settings), options)


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
