"""Picture of how far plans are from full attention, by domain."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.fidelity_by_domain import ALL, DomainRow
from winnow.cli.draw import new_figure, plain, save
from winnow.plan import Plan

COLOURS = {
    "prompt": "#6b8f3c",
    "compute": "#00798c",
    "keep": "#d1495b",
    "prefill": "#8d6b4f",
    "read": "#edae49",
    "store": "#6a4c93",
    "several": "black",
}


def plot_domains(path: Path, rows: Sequence[DomainRow]) -> None:
    """A panel per domain, a bar per plan: its KL with the 95 % interval, in the colour of its verb."""
    from matplotlib.patches import Patch

    measured = [row for row in rows if row.plan != "full"]
    overall = sorted((row for row in measured if row.domain == ALL), key=lambda row: row.kl.mean)
    order = {row.plan: place for place, row in enumerate(overall)}
    domains = [ALL, *(domain for domain in dict.fromkeys(row.domain for row in measured) if domain != ALL)]
    size = (3.2 + 2.2 * len(domains), 1.4 + 0.28 * len(order))
    figure = new_figure(*size)
    axes = figure.subplots(1, len(domains), squeeze=False, sharey=True)[0]
    for axis, domain in zip(axes, domains, strict=True):
        for row in (row for row in measured if row.domain == domain):
            reach = [[max(0.0, row.kl.mean - row.kl.low)], [max(0.0, row.kl.high - row.kl.mean)]]
            axis.barh(
                order[row.plan], row.kl.mean, xerr=reach, color=COLOURS[verb_of(row.plan)], ecolor="0.3", height=0.7
            )
        axis.set_title(f"{domain}, {next(row.windows for row in measured if row.domain == domain)} windows", fontsize=9)
        axis.set_xlabel("KL, nats per token", fontsize=8)
        plain(axis, "x")
    verbs = [verb for verb in COLOURS if verb in map(verb_of, order)]
    handles = [Patch(color=COLOURS[verb], label=verb) for verb in verbs]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
    axes[0].set_yticks(list(order.values()), [_short(plan) for plan in order], fontsize=7)
    axes[0].invert_yaxis()  # shared by all panels
    save(figure, path)


def verb_of(plan: str) -> str:
    """The one verb that a plan says something about, or "several"."""
    verbs = [verb for verb, policy in Plan.parse(plan).policies.items() if not policy.identity]
    return verbs[0] if len(verbs) == 1 else "several"


def _short(plan: str) -> str:
    return plan if len(plan) <= 46 else f"{plan[:44]} …"
