"""One plan on one prompt: how far its next tokens are from full attention's, and what it computed, read and held."""

import math
from dataclasses import dataclass

from torch import Tensor

from winnow.evaluation.evaluate import Case
from winnow.evaluation.fidelity import check_numbers, distance, log_probs_along
from winnow.plan import Plan
from winnow.runtime.llm import LLM
from winnow.stats import Stats

WORST = 1e6  # nats: in place of the KL of a plan whose logits are no numbers


@dataclass(frozen=True)
class Reference:
    """Full attention's own greedy answer to a prompt, with the stop token that ends it, if one does.

    answer: its token ids; log_probs: [vocab] float32 on the CPU, at the place of each. full: what this run took, as the
    measurement of full attention, which is at no distance from itself; seconds: how long.
    """

    case: Case
    answer: list[int]
    log_probs: list[Tensor]
    full: "Measurement"
    seconds: float


@dataclass(frozen=True)
class Measurement:
    """A plan over full attention's answer to one prompt, fed token by token.

    prompt: which one. kl: mean KL(full || plan) of the next token, in nats; agreement: share of the tokens at which
    both find the same one likeliest. rows_*, units_*, total_bytes: as in `Stats`. prefill_s, step_s: of this one
    run, 0 where there was no decode step; pace: its time over full attention's on this prompt. They only rank.
    """

    plan: str
    prompt: int
    kl: float
    agreement: float
    rows_computed: int
    rows_full: int
    units_read: int
    units_full: int
    total_bytes: int
    prefill_s: float
    step_s: float
    pace: float


def reference(llm: LLM, case: Case, prompt: int) -> Reference:
    """Answer a prompt greedily under full attention. Raises InputError or CapacityError before any work."""
    [request] = llm.check([case.ids], case.params, plan=Plan())
    answer: list[int] = []
    log_probs: list[Tensor] = []
    with llm.session(plan=Plan(), max_tokens=case.params.max_tokens) as session:
        fed = case.ids
        while fed:
            session.feed(fed)
            answer.append(int(session.logits.argmax()))
            log_probs.append(session.logits.log_softmax(-1).cpu())
            ended = len(answer) == case.params.max_tokens or answer[-1] in request.stop_tokens
            fed = [] if ended else answer[-1:]
        stats = session.stats
    check_numbers(not any(row.isnan().any() for row in log_probs))
    full = _measurement(Plan(), prompt, stats, len(answer), 0.0, 1.0, stats.total_s)
    return Reference(case, answer, log_probs, full, stats.total_s)


def measure(llm: LLM, known: Reference, plan: Plan) -> Measurement:
    """Run `plan` over the reference's prompt and answer. Raises InputError or PlanError before any work."""
    case, answer = known.case, known.answer
    llm.check([case.ids], case.params, plan=plan)
    with llm.session(plan=plan, max_tokens=case.params.max_tokens) as session:
        session.feed(case.ids)
        following = (row.cpu() for row in log_probs_along(session, answer))
        found = distance(plan, len(case.ids), answer, known.log_probs, following)
        stats = session.stats
    # Rounding can leave a KL that is a hair less than 0.
    kl, agreement = (max(0.0, found.kl), found.top1) if math.isfinite(found.kl) else (WORST, 0.0)
    return _measurement(plan, known.full.prompt, stats, len(answer), kl, agreement, known.seconds)


def _measurement(
    plan: Plan, prompt: int, stats: Stats, tokens: int, kl: float, agreement: float, full_s: float
) -> Measurement:
    return Measurement(
        plan=str(plan),
        prompt=prompt,
        kl=kl,
        agreement=agreement,
        rows_computed=stats.rows_computed,
        rows_full=stats.rows_full,
        units_read=stats.units_read,
        units_full=stats.units_full,
        total_bytes=stats.total_bytes,
        prefill_s=stats.ttft_s,
        step_s=(stats.total_s - stats.ttft_s) / (tokens - 1) if tokens > 1 else 0.0,
        pace=stats.total_s / full_s,
    )
