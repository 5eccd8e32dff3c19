"""What was measured of the support of attention at every step, and the figures of many steps together."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from winnow.errors import InputError
from winnow.plan import Plan
from winnow.policies.read.slowfast import SlowFast

# overlap: with the support of the step before; since: with that of the last refresh; recall: the attention caught by
# the last selection; best: by the most attended units, as many of them; fresh: by the selection that the step itself
# has led to.
MEASURES = ("overlap", "since", "recall", "best", "fresh")
Heads = tuple[float | None, ...]  # a figure per KV head; None where there is none


@dataclass
class Steps:
    """One prompt's answer, step by step; step 0 is the last token of the prompt, which no figure but `fresh` is of.

    values: per step [measures, layers, kv_heads] in the order of MEASURES, NaN where there is none; distances: per step
    [layers] steps since the last refresh; slow, boundary: per step.
    """

    policy: SlowFast
    layers: int
    kv_heads: int
    values: list[Tensor] = field(default_factory=list)
    distances: list[Tensor] = field(default_factory=list)
    slow: list[bool] = field(default_factory=list)
    boundary: list[bool] = field(default_factory=list)

    def begin(self, *, slow: bool, boundary: bool) -> None:
        """The next step."""
        self.values.append(torch.full((len(MEASURES), self.layers, self.kv_heads), torch.nan, dtype=torch.float64))
        self.distances.append(torch.zeros(self.layers, dtype=torch.int64))
        self.slow.append(slow)
        self.boundary.append(boundary)

    def note(self, layer: int, measure: str, value: Tensor) -> None:
        """value: [kv_heads], of the step begun last."""
        self.values[-1][MEASURES.index(measure), layer] = value.cpu()


@dataclass(frozen=True)
class LayerSupport:
    """One layer: means over steps, inside sentences and at boundaries (steps that feed the first token of a sentence).

    overlap: the share of the most attended `budget` units that were among those of the step before; recall: the
    attention on what a fast step would have read by the last selection. steps: how many are inside and at boundaries.
    """

    layer: int
    overlap_inside: Heads
    overlap_boundary: Heads
    recall_inside: Heads
    recall_boundary: Heads
    best: Heads


@dataclass(frozen=True)
class Age:
    """All steps that are `distance` steps after the last refresh of a layer; 0: the refresh itself.

    counted: [layers] how many there are; the others are [layers][kv_heads], overlap: of the support with that of the
    refresh; recall: the attention on what a fast step would read; best: on the most attended units, as many of them.
    """

    distance: int
    counted: tuple[int, ...]
    overlap: tuple[Heads, ...]
    recall: tuple[Heads, ...]
    best: tuple[Heads, ...]


@dataclass(frozen=True)
class Support:
    """Of `prompts` prompts and `steps` decode steps in all, `boundaries` of them at boundaries and `slow` slow ones."""

    policy: SlowFast
    prompts: int
    steps: int
    boundaries: int
    slow: int
    layers: tuple[LayerSupport, ...]
    ages: tuple[Age, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"plan": str(Plan(read=self.policy)), **asdict(self), "policy": asdict(self.policy)}


def summarise_support(found: Sequence[Steps]) -> Support:
    """The figures of all prompts together, of which there is at least one; every step counts the same.

    Raises InputError where no answer has a decode step.
    """
    steps = sum(len(each.values) - 1 for each in found)
    if not steps:
        raise InputError(
            f"{len(found)} answers without a decode step are too short to measure; take prompts with longer answers, "
            "or go on past the model's stop tokens (--ignore-eos)"
        )
    values = torch.cat([torch.stack(each.values) for each in found])  # [steps, measures, layers, kv_heads]
    distances = torch.cat([torch.stack(each.distances) for each in found])  # [steps, layers]
    boundary = torch.tensor([mark for each in found for mark in each.boundary])
    overlap, _, recall, best, _ = values.unbind(1)  # [steps, layers, kv_heads]
    means = [_means(part) for figure in (overlap, recall) for part in (figure[~boundary], figure[boundary])]
    means.append(_means(best.masked_fill(recall.isnan(), torch.nan)))
    return Support(
        policy=found[0].policy,
        prompts=len(found),
        steps=steps,
        boundaries=int(boundary.sum()),
        slow=sum(sum(each.slow) for each in found),
        layers=tuple(LayerSupport(layer, *each) for layer, each in enumerate(zip(*means, strict=True))),
        ages=tuple(_ages(values, distances)),
    )


def _ages(values: Tensor, distances: Tensor) -> Iterator[Age]:
    _, since, recall, best, fresh = values.unbind(1)  # [steps, layers, kv_heads]
    for distance in range(int(distances.max()) + 1):
        if distance == 0:
            made = fresh.isnan()
            figures = [torch.ones_like(fresh).masked_fill(made, torch.nan), fresh, best.masked_fill(made, torch.nan)]
        else:
            others = (distances != distance)[..., None]
            figures = [each.masked_fill(others, torch.nan) for each in (since, recall, best)]
        if any(counted := _count(figures[1])):
            yield Age(distance, counted, *map(_means, figures))


def _count(values: Tensor) -> tuple[int, ...]:
    """How many steps there are of each layer."""
    return tuple((~values[..., 0].isnan()).sum(0).tolist())


def _means(values: Tensor) -> tuple[Heads, ...]:
    """[steps, layers, kv_heads] -> [layers][kv_heads], over the steps that have a figure."""
    return tuple(tuple(None if each != each else each for each in heads) for heads in values.nanmean(0).tolist())
