"""How close many plans stay to full attention on texts of several domains: the same windows for all plans."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.windows import Window
from winnow import LLM, Plan, Stats
from winnow.evaluation.compare import with_full
from winnow.evaluation.evaluate import Progress, silent
from winnow.evaluation.fidelity import Fidelity, check_fidelity, fidelities
from winnow.policies.keep.budgeted import LOCAL

ALL = "all"  # every window of every domain
FIGURES = ("kl", "top1", "nll_plan", "nll_full")
RESAMPLES = 2000
SINK = 4
# Plans that keep, or whose steps read, as many units of a long prompt per KV head: `{budget}` and the tail of the
# prompt that `budget` policies keep beside it, `{kept}` in all. slowfast reads more in its slow steps, quest and tidal
# in their dense layers, sketch its sketches; what each of them really read is measured.
# `indexer` is not among them: no model comes with indexers.
EQUAL = (
    "locret(budget={budget})",
    "random_heads(budget={budget})",
    "h2o(budget={budget}, decode_chunk=None)",
    "scissorhands(budget={budget})",
    "snapkv(budget={kept})",
    "sirllm(budget={budget})",
    "tova(budget={budget}, decode_chunk=None)",
    "knorm(budget={budget})",
    "keydiff(budget={budget})",
    "lagkv(budget={budget}, lag=64)",
    "expected_attention(budget={budget})",
    "kvzip(budget={budget})",
    "streaming(sink=4, recent={recent})",
    "slowfast(budget={budget}, recent=100, interval=4, min_gap=4, memory=0.5)",
    "slowfast(budget={budget}, recent=100)",
    "quest(page=16, budget={pages})",
    "sketch(budget={kept})",
    "tidal(budget={kept})",
    "infllm(recent={half}, sink=4, block=16, top={blocks})",
    "sink_recent(sink=4, recent={recent})",
)


@dataclass(frozen=True)
class Measured:
    """A plan on a window."""

    window: Window
    fidelity: Fidelity
    stats: Stats

    def to_dict(self) -> dict[str, Any]:
        """Every figure; of the window its domain, number and text, not its tokens."""
        where = {"domain": self.window.domain, "index": self.window.index, "text": self.window.text}
        return {**where, **self.fidelity.to_dict(), "stats": self.stats.to_dict()}


@dataclass(frozen=True)
class Interval:
    """A mean over windows and its 95 % interval, by resampling the windows."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class DomainRow:
    """A plan on `windows` windows of a domain, or of all.

    kl, nll_plan, nll_full: nats per token. perplexity: the plan's. rows_share, units_share: computed and read, of what
    full attention takes for the same tokens; total_share: the most bytes held, of full attention's.
    """

    plan: str
    domain: str
    windows: int
    kl: Interval
    top1: Interval
    nll_plan: Interval
    nll_full: Interval
    perplexity: float
    rows_share: float
    units_share: float
    total_share: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def equal_plans(budget: int) -> list[Plan]:
    """The policies that have a budget, each in a plan of its own, all at the same one; `EQUAL` says what is equal."""
    kept = budget + LOCAL
    gaps = {"budget": budget, "kept": kept, "recent": kept - SINK, "pages": max(2, kept // 16) * 16}
    gaps |= {"half": kept // 2, "blocks": (kept - kept // 2 - SINK) // 16}
    return [Plan.parse(text.format(**gaps)) for text in EQUAL]


def fidelity_by_domain(
    llm: LLM,
    plans: Sequence[str | Plan],
    chosen: Sequence[Window],
    prompt_tokens: int,
    *,
    progress: Progress = silent,
) -> Iterator[list[Measured]]:
    """Full attention and `plans` on each window: `prompt_tokens` are prefilled, the others are fed; one list a window.

    progress: called with the number of tokens just done, of all plans and full attention.
    Raises InputError, CapacityError or PlanError before any work is done.
    """
    every = with_full(plans)
    for window in chosen:
        check_fidelity(llm, window.ids, every, prompt_tokens)
    return _measure(llm, every, chosen, prompt_tokens, progress)


def summarise_domains(measured: Sequence[Measured]) -> list[DomainRow]:
    """A row per plan and domain, and one per plan over `ALL`; all plans must have been measured on the same windows."""
    domains = [*dict.fromkeys(each.window.domain for each in measured), ALL]
    plans = dict.fromkeys(each.fidelity.plan for each in measured)
    rows = []
    for domain in domains:
        here = [each for each in measured if domain in (each.window.domain, ALL)]
        full = [each for each in here if each.fidelity.plan == "full"]
        for plan in plans:
            rows.append(_row(domain, [each for each in here if each.fidelity.plan == plan], full))
    return rows


def _measure(
    llm: LLM, plans: Sequence[Plan], chosen: Sequence[Window], prompt_tokens: int, progress: Progress
) -> Iterator[list[Measured]]:
    for window in chosen:
        found = fidelities(llm, window.ids, plans, prompt_tokens, progress=progress)
        yield [Measured(window, *each) for each in found]


def _row(domain: str, group: Sequence[Measured], full: Sequence[Measured]) -> DomainRow:
    kl, top1, nll_plan, nll_full = (bootstrap([getattr(each.fidelity, name) for each in group]) for name in FIGURES)
    return DomainRow(
        plan=group[0].fidelity.plan,
        domain=domain,
        windows=len(group),
        kl=kl,
        top1=top1,
        nll_plan=nll_plan,
        nll_full=nll_full,
        perplexity=math.exp(nll_plan.mean),
        rows_share=_total(group, "rows_computed") / _total(group, "rows_full"),
        units_share=_total(group, "units_read") / _total(group, "units_full"),
        total_share=_total(group, "total_bytes") / _total(full, "total_bytes"),
    )


def bootstrap(values: Sequence[float]) -> Interval:
    """The mean of `values`, and the middle 95 % of the means of `RESAMPLES` samples of as many, with repetition."""
    given = np.array(values)
    drawn = np.random.default_rng(0).integers(len(given), size=(RESAMPLES, len(given)))
    low, high = np.quantile(given[drawn].mean(1), (0.025, 0.975))
    return Interval(float(given.mean()), float(low), float(high))


def _total(group: Sequence[Measured], count: str) -> int:
    return sum(getattr(each.stats, count) for each in group)
