"""At which layer the prompt could stop, read from layer-wise diagnostics: four rules, each with a threshold."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

TAIL_SHARE = 0.2  # of the selective mass of all layers, at most so much may be in the layers from the cutoff on
LAYER_MASS = 0.25  # the most selective mass of any one layer from the cutoff on
FLAT_DEGREES = 5.0  # the band that the mean curvature of the states entering those layers stays in


@dataclass(frozen=True)
class Thresholds:
    """How much the layers from the cutoff on may still select from the prompt, and still bend its trajectory."""

    tail_share: float = TAIL_SHARE
    layer_mass: float = LAYER_MASS
    flat_degrees: float = FLAT_DEGREES


@dataclass(frozen=True)
class Rule:
    """One demand on a cutoff: its figure must be at most `threshold`.

    values: [layers + 1], the figure of every cutoff 0 .. layers; it never rises with the cutoff. smallest: the smallest
    cutoff above 0 that the rule alone allows.
    """

    name: str
    unit: Literal["share", "degrees"]
    threshold: float
    values: tuple[float, ...]

    @property
    def smallest(self) -> int:
        return next(cutoff for cutoff in range(1, len(self.values)) if self.values[cutoff] <= self.threshold)


@dataclass(frozen=True)
class Cutoff:
    """The smallest cutoff that every rule allows; `layers` means none, since no lower one is allowed.

    rules: the most demanding first, so that the first one decided and the second is the runner-up. mass_above: share of
    all layers' attention to the prompt, selective or not, that is in the layers from the cutoff on.
    """

    layer: int
    layers: int
    rules: tuple[Rule, ...]
    mass_above: float

    def to_dict(self) -> dict[str, Any]:
        rules = [{**asdict(rule), "smallest": rule.smallest} for rule in self.rules]
        return {"layer": self.layer, "layers": self.layers, "mass_above": self.mass_above, "rules": rules}


def recommend(
    mass: Sequence[float],
    selective: Sequence[float],
    curvature: Mapping[str, Sequence[float | None]],
    thresholds: Thresholds | None = None,
) -> Cutoff:
    """The cutoff K for a prompt that stops before layer K.

    Rules, about the layers K .. layers - 1: their share of the selective mass of all layers is at most `tail_share`;
    none of them has more than `layer_mass`; the curvature of the states that enter them stays within `flat_degrees`,
    at prompt and at decode positions. SPEED (arXiv:2605.06105) wants the layers that select from the prompt and those
    that settle its representation below K; how to tell them by figures is ours.

    mass, selective: [layers], attention mass on the prompt, and the part of it that selects. curvature: by phase,
    [layers], degrees, of the states that enter each layer; None where there is none.
    """
    limits, layers = thresholds or Thresholds(), len(mass)
    rules = [
        Rule("tail share", "share", limits.tail_share, _tails(selective, _share_of(selective))),
        Rule("layer mass", "share", limits.layer_mass, _tails(selective, max)),
    ]
    for phase, degrees in curvature.items():
        rules.append(Rule(f"{phase} curvature", "degrees", limits.flat_degrees, _tails(degrees, _band)))
    rules.sort(key=lambda rule: -rule.smallest)
    cutoff = rules[0].smallest
    return Cutoff(cutoff, layers, tuple(rules), _tails(mass, _share_of(mass))[cutoff])


def _tails(values: Sequence[Any], figure: Callable[[Sequence[Any]], float]) -> tuple[float, ...]:
    """The figure of values[cutoff:] for every cutoff; 0 where nothing is left."""
    return (*(figure(values[cutoff:]) for cutoff in range(len(values))), 0.0)


def _share_of(values: Sequence[float]) -> Callable[[Sequence[float]], float]:
    whole = sum(values)
    return lambda tail: sum(tail) / whole if whole else 0.0


def _band(degrees: Sequence[float | None]) -> float:
    """How far the values that there are lie apart."""
    known = [each for each in degrees if each is not None]
    return max(known) - min(known) if known else 0.0
