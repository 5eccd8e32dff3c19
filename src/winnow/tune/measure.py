"""One plan on one prompt: how far its next tokens are from full attention's, and what it computed, read and held."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.errors import ModelError
from winnow.evaluation.evaluate import Case
from winnow.plan import Plan
from winnow.runtime.llm import LLM
from winnow.stats import Stats

WORST = 1e6  # nats: in place of the KL of a plan whose logits are no numbers


@dataclass(frozen=True)
class Reference:
    """Full attention's own greedy answer to a prompt, with the stop token that ends it, if one does.

    answer: its token ids; logprobs: [len(answer), vocab] float32 on the CPU, before each of them. full: what this run
    took, as the measurement of full attention, which is at no distance from itself; seconds: how long.
    """

    case: Case
    answer: list[int]
    logprobs: Tensor
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

    def following(logits: Tensor) -> int | None:
        answer.append(int(logits.argmax()))
        return None if len(answer) == case.params.max_tokens or answer[-1] in request.stop_tokens else answer[-1]

    run = _run(llm, Plan(), case, following)
    if run.logits.isnan().any():
        raise ModelError("full attention gives no numbers here (NaN); use --dtype bfloat16 or float32")
    full = _measurement(Plan(), prompt, run, 0.0, 1.0, run.seconds)
    return Reference(case, answer, run.logits.log_softmax(-1).cpu(), full, run.seconds)


def measure(llm: LLM, known: Reference, plan: Plan) -> Measurement:
    """Run `plan` over the reference's prompt and answer. Raises InputError or PlanError before any work."""
    llm.check([known.case.ids], known.case.params, plan=plan)
    rest = iter(known.answer[:-1])
    run = _run(llm, plan, known.case, lambda logits: next(rest, None))
    got, full = run.logits.log_softmax(-1).cpu(), known.logprobs
    kl = float((full.exp() * (full - got)).sum(-1).double().mean())
    kl = max(0.0, kl) if math.isfinite(kl) else WORST  # rounding can leave a hair less than 0
    same = (full.argmax(-1) == got.argmax(-1)) & ~got.isnan().any(-1)
    agreement = float(same.double().mean())
    return _measurement(plan, known.full.prompt, run, kl, agreement, known.seconds)


@dataclass(frozen=True)
class _Run:
    """logits: [tokens, vocab], before each token of the answer."""

    logits: Tensor
    stats: Stats
    prefill_s: float
    decode_s: float

    @property
    def seconds(self) -> float:
        return self.prefill_s + self.decode_s


def _measurement(plan: Plan, prompt: int, run: _Run, kl: float, agreement: float, full_s: float) -> Measurement:
    stats, steps = run.stats, len(run.logits) - 1
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
        prefill_s=run.prefill_s,
        step_s=run.decode_s / steps if steps else 0.0,
        pace=run.seconds / full_s,
    )


def _run(llm: LLM, plan: Plan, case: Case, following: Callable[[Tensor], int | None]) -> _Run:
    """Prefill the prompt under `plan`, then feed what `following` makes of each logits, until it gives None."""
    with llm.session(plan=plan, max_tokens=case.params.max_tokens) as session:
        rows = [session.feed(case.ids)]
        while (token := following(session.logits)) is not None:
            rows.append(session.feed([token]))
        stats = session.stats
    return _Run(torch.cat(rows), stats, stats.ttft_s, stats.total_s - stats.ttft_s)
