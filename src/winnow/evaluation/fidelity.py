"""How close a plan stays to full attention on a given text: teacher-forced divergence, agreement and likelihood."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from winnow.engine.session import Session
from winnow.errors import CapacityError, InputError, ModelError
from winnow.evaluation.evaluate import Progress, silent
from winnow.plan import Plan
from winnow.runtime.llm import LLM
from winnow.stats import Stats


@dataclass(frozen=True)
class Fidelity:
    """A plan against full attention over the `tokens` tokens that follow a prompt of `prompt_tokens`.

    kl: mean KL(full || plan) of the next token, in nats. top1: share of the steps where both find the same token
    likeliest. nll_full, nll_plan: mean negative log-likelihood of the text's own next token, in nats. What a plan that
    gives no numbers (NaN) makes of these is none either, and agrees nowhere.
    """

    plan: str
    prompt_tokens: int
    tokens: int
    kl: float
    top1: float
    nll_full: float
    nll_plan: float

    def to_dict(self) -> dict[str, Any]:
        """Every figure by name, with the perplexities."""
        figures = {"perplexity_full": math.exp(self.nll_full), "perplexity_plan": math.exp(self.nll_plan)}
        # NaN alone is not itself, and JSON has none.
        return {name: None if value != value else value for name, value in {**asdict(self), **figures}.items()}


@dataclass(frozen=True)
class Perplexity:
    """Full attention over a text: `nll` in nats per token, over its `tokens` tokens after the first."""

    tokens: int
    nll: float

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "perplexity": math.exp(self.nll)}


def fidelity(
    llm: LLM, ids: Sequence[int], plan: str | Plan, prompt_tokens: int, *, progress: Progress = silent
) -> Fidelity:
    """Prefill `ids[:prompt_tokens]` under full attention and under `plan`, then feed both the rest, token by token.

    Holds the two caches and the logits of one step. progress: called with the number of tokens just done, `len(ids)`
    in all.
    Raises InputError, CapacityError or PlanError before any work is done.
    """
    chosen, tokens = Plan.parse(plan), check_fidelity(llm, ids, [plan], prompt_tokens)
    prompt, rest = tokens[:prompt_tokens], tokens[prompt_tokens:]
    full, other = (llm.session(plan=each, max_tokens=len(rest)) for each in (Plan(), chosen))
    expected = log_probs_after(full, prompt, rest)
    return distance(chosen, prompt_tokens, rest, expected, log_probs_after(other, prompt, rest, progress))


def fidelities(
    llm: LLM,
    ids: Sequence[int],
    plans: Sequence[Plan],
    prompt_tokens: int,
    expected: list[Tensor] | None = None,
    *,
    progress: Progress = silent,
) -> Iterator[tuple[Fidelity, Stats]]:
    """`fidelity` of each plan, and what its run has cost, with full attention, the first of `plans`, run once.

    Holds full attention's log-probabilities, [len(ids) - prompt_tokens, vocab] float32, and one cache.
    expected: a list for these, empty; or with those of another model's full attention, which all are compared with.
    progress: called with the number of tokens just done, `len(ids)` for every plan. Raises as `fidelity`.
    """
    tokens = check_fidelity(llm, ids, plans, prompt_tokens)
    prompt, rest = tokens[:prompt_tokens], tokens[prompt_tokens:]
    expected = [] if expected is None else expected
    for plan in plans:
        session = llm.session(plan=plan, max_tokens=len(rest))
        found: Iterable[Tensor] = log_probs_after(session, prompt, rest, progress)
        if not expected:
            expected += found
            found = expected
        yield distance(plan, prompt_tokens, rest, expected, found), session.stats


def check_fidelity(llm: LLM, ids: Sequence[int], plans: Sequence[str | Plan], prompt_tokens: int) -> list[int]:
    """The token ids as a list; raises InputError, CapacityError or PlanError where `fidelity` cannot take them."""
    tokens = _checked(llm, ids)
    if not 1 <= prompt_tokens < len(tokens):
        raise InputError(
            f"prompt_tokens={prompt_tokens} must be between 1 and {len(tokens) - 1}: the text's tokens - 1"
        )
    for plan in map(Plan.parse, plans):
        plan.prepare(llm.services, tokens[:prompt_tokens], len(tokens) - prompt_tokens)
    return tokens


def log_probs_after(
    session: Session, prompt: Sequence[int], tokens: list[int], progress: Progress = silent
) -> Iterator[Tensor]:
    """The same as `log_probs_along`, of a new session, after a prompt. progress: as in `fidelity`."""
    session.feed(prompt)
    progress(len(prompt))
    for row in log_probs_along(session, tokens):
        yield row
        progress(1)


def log_probs_along(session: Session, tokens: list[int]) -> Iterator[Tensor]:
    """The log-probabilities at the place of each of `tokens`, [vocab] float32; all but the last are fed."""
    for place, token in enumerate(tokens, start=1):
        yield session.logits.log_softmax(-1)
        if place < len(tokens):
            session.feed([token])


def distance(
    plan: Plan | str, prompt_tokens: int, tokens: list[int], full: Iterable[Tensor], other: Iterable[Tensor]
) -> Fidelity:
    """full, other: log-probabilities of full attention and of the plan at the places of `tokens`; or of two runs of
    somebody else's, of which `plan` names one. Raises ModelError where full attention gives no numbers."""
    totals = torch.zeros(4, dtype=torch.float64)
    for expected, found, token in zip(full, other, tokens, strict=True):
        totals += _compare(expected, found, token)
    kl, top1, nll_full, nll_plan = (totals / len(tokens)).tolist()
    check_numbers(not math.isnan(nll_full))
    return Fidelity(str(plan), prompt_tokens, len(tokens), kl, top1, nll_full, nll_plan)


def perplexity(llm: LLM, ids: Sequence[int], *, progress: Progress = silent) -> Perplexity:
    """The mean negative log-likelihood of a text under full attention, whole chunks at a time.

    progress: called with the number of tokens just done. Raises InputError or CapacityError before any work is done,
    and ModelError where full attention gives no numbers.
    """
    tokens = _checked(llm, ids)
    total = 0.0
    for piece in llm.surprisals(tokens):
        total += float(piece.double().sum())
        progress(len(piece))
    check_numbers(not math.isnan(total))
    return Perplexity(len(tokens) - 1, total / (len(tokens) - 1))


def _compare(full: Tensor, other: Tensor, following: int) -> Tensor:
    """[vocab] log-probabilities of full attention and of the plan -> [kl, agreement, nll_full, nll_plan], float64."""
    kl = (full.exp() * (full - other)).sum()
    same = (full.argmax() == other.argmax()) & ~other.isnan().any()
    return torch.stack([kl.double(), same.double(), -full[following].double(), -other[following].double()]).cpu()


def check_numbers(found: bool) -> None:
    """Raises ModelError where full attention gives none."""
    if not found:
        raise ModelError("full attention gives no numbers here (NaN); use --dtype bfloat16 or float32")


def _checked(llm: LLM, ids: Sequence[int]) -> list[int]:
    tokens, shape = list(ids), llm.decoder.shape
    if len(tokens) < 2:
        raise InputError(f"the text has {len(tokens)} tokens; at least 2 are needed to predict one from another")
    if len(tokens) > shape.max_positions + 1:  # the last one is predicted, never fed
        raise CapacityError(
            f"the text has {len(tokens)} tokens, more than the model's {shape.max_positions} positions; shorten it"
        )
    if bad := [token for token in tokens if not 0 <= token < shape.vocab]:
        raise InputError(f"token id {bad[0]} is not in the vocabulary; ids are 0 to {shape.vocab - 1}")
    return tokens
