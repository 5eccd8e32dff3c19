"""How few tokens of a prompt hold the attention that its last token pays: layer by layer, no attention map kept."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from winnow import LLM, Observer, Plan, SamplingParams
from winnow.errors import InputError
from winnow.evaluation.evaluate import Progress, cases, check_lengths, silent
from winnow.tasks import Task

if TYPE_CHECKING:
    from winnow.runtime.observer import Attended

POINTS = 60  # of a curve


@dataclass(frozen=True)
class Profile:
    """The attention of the last prompt token over the prompt in one layer, the mean over heads; None: over layers too.

    holds: for each mass, as text, the smallest share of the prompt's tokens that holds it. below_uniform: share of the
    tokens that get less than an equal part. curve: attention at the `token_shares`, from the most attended token down.
    """

    layer: int | None
    holds: dict[str, float]
    below_uniform: float
    curve: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def sparsity(
    llm: LLM,
    tasks: Sequence[Task],
    length: int,
    examples: int,
    *,
    masses: Sequence[float],
    seed: int = 0,
    progress: Progress = silent,
) -> Iterator[list[Profile]]:
    """Prefill the examples under full attention; yields for each the profiles of all layers, then of their mean.

    masses: shares of the attention, above 0 and below 1. progress: called with the number of prompt tokens just
    processed. Raises, before any work: InputError, CapacityError where something cannot be run.
    """
    check_masses(masses)
    check_lengths(llm, ["full"], [length])
    for task in tasks:
        first = next(cases(llm, [task], [length], 1, seed=seed))
        llm.check([first.ids], SamplingParams(max_tokens=1), plan="full")
    shares = token_shares(length)
    made = cases(llm, tasks, [length], examples, seed=seed)
    return (_profiles(attention(llm, case.ids, progress), masses, shares) for case in made)


def check_masses(masses: Sequence[float]) -> None:
    """Raise InputError unless they are shares of the attention."""
    if bad := [mass for mass in masses if not 0 < mass < 1]:
        raise InputError(f"a mass of {bad[0]:g} must be above 0 and below 1")


def token_shares(length: int) -> list[float]:
    """Where curves are sampled: shares of the tokens from 1 / `length` to 1, evenly on a logarithmic scale."""
    return [length ** (point / (POINTS - 1) - 1) for point in range(POINTS)]


def mean_profiles(found: Sequence[list[Profile]]) -> list[Profile]:
    """Over examples, layer by layer."""
    return [_mean(layer) for layer in zip(*found, strict=True)]


def attention(llm: LLM, ids: Sequence[int], progress: Progress = silent) -> Tensor:
    """How much the last token of a prompt attends to each: [layers, tokens] float64 on the CPU, mean over q heads."""
    last = _LastToken()
    with llm.session(plan=Plan(), max_tokens=1, observer=last) as session:
        session.feed(ids, progress=progress)
    return torch.stack([last.found[layer] for layer in range(llm.decoder.shape.layers)])


class _LastToken(Observer):
    """The attention of the last prompt token in every layer, as the mean over heads."""

    def __init__(self) -> None:
        self.found: dict[int, Tensor] = {}

    def attended(self, attended: "Attended") -> None:
        part = attended.part
        if int(part.positions[-1]) == part.sequence.prompt - 1:
            weights, positions = attended.weights()  # full attention: all heads hold the same units
            mean = weights.new_zeros(part.known)
            mean[positions] = weights.mean(0)
            self.found[attended.layer] = mean.double().cpu()


def _profiles(weights: Tensor, masses: Sequence[float], shares: Sequence[float]) -> list[Profile]:
    layers = [_profile(layer, each, masses, shares) for layer, each in enumerate(weights)]
    return [*layers, _profile(None, weights.mean(0), masses, shares)]


def _profile(layer: int | None, weights: Tensor, masses: Sequence[float], shares: Sequence[float]) -> Profile:
    """weights: [tokens]; attention that goes to sinks beside the tokens is left out."""
    tokens = len(weights)
    ordered = (weights / weights.sum()).sort(descending=True).values
    held = ordered.cumsum(0)
    counts = {f"{mass:g}": int((held < mass).sum()) + 1 for mass in masses}
    ranks = [min(tokens, math.ceil(share * tokens - 1e-9)) - 1 for share in shares]
    return Profile(
        layer=layer,
        holds={mass: min(count, tokens) / tokens for mass, count in counts.items()},
        below_uniform=float((ordered < 1 / tokens).double().mean()),
        curve=tuple(ordered[ranks].tolist()),
    )


def _mean(profiles: Sequence[Profile]) -> Profile:
    first, count = profiles[0], len(profiles)
    return Profile(
        layer=first.layer,
        holds={mass: sum(each.holds[mass] for each in profiles) / count for mass in first.holds},
        below_uniform=sum(each.below_uniform for each in profiles) / count,
        curve=tuple(sum(point) / count for point in zip(*(each.curve for each in profiles), strict=True)),
    )
