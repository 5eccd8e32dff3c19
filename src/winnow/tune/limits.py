"""What a plan has to hold to, and how far off it is."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, NamedTuple

from annotated_types import Interval

from winnow.errors import InputError
from winnow.parameters import Share, wrong_type

DEFAULT_KL = 0.01  # nats: what a plan may differ by where the user sets no limit on that
Positive = Annotated[float, Interval(gt=0, lt=math.inf)]
TINY = 1e-9  # instead of a figure of 0, whose logarithm is none


class Rule(NamedTuple):
    """The figure a limit is about; whether it is the most that figure may be, or the least."""

    figure: str
    most: bool
    spelt: str


RULES: dict[str, Rule] = {
    "max_kl": Rule("kl", True, "KL {:.4g} nats"),
    "min_agreement": Rule("agreement", False, "agreement {:.4g}"),
    "max_cache_mib": Rule("total_mib", True, "memory {:.4g} MiB"),
    "target_ttft": Rule("ttft_s", True, "TTFT {:.4g} s"),
    "target_tpot": Rule("tpot_s", True, "TPOT {:.4g} s"),
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a recommended plan keeps to; None: no such limit. Raises InputError naming the one that is out of range."""

    max_kl: Positive | None = None
    """Nats: mean KL from full attention of the next token. Default: 0.01, without --min-agreement."""
    min_agreement: Share | None = None
    """Share of the tokens at which plan and full attention find the same one likeliest, 0 to 1."""
    max_cache_mib: Positive | None = None
    """The most held for any prompt, in MiB: all bytes, not only of keys and values."""
    target_ttft: Positive | None = None
    """Seconds: median time to the first token."""
    target_tpot: Positive | None = None
    """Seconds: median time per token after it."""

    def __post_init__(self) -> None:
        if problem := wrong_type(self):
            raise InputError(problem)

    @property
    def given(self) -> dict[str, float]:
        """Those that are set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def with_default(self) -> "Limits":
        """With the default limit on KL where there is none on how far a plan may differ."""
        return self if {"max_kl", "min_agreement"} & self.given.keys() else replace(self, max_kl=DEFAULT_KL)

    def loosened(self, factor: float) -> "Limits":
        """With `factor` times the KL and the disagreement."""
        least, kl = self.min_agreement, self.max_kl
        return replace(
            self,
            max_kl=None if kl is None else kl * factor,
            min_agreement=None if least is None else max(TINY, 1 - factor * (1 - least)),
        )

    def excess(self, figures: Mapping[str, float]) -> dict[str, float]:
        """By what factor each limit is missed, as its natural logarithm; only limits that are, of figures given."""
        missed = {}
        for name, limit in self.given.items():
            rule = RULES[name]
            if rule.figure in figures:
                value = max(figures[rule.figure], TINY)
                if (off := math.log(value / limit) if rule.most else math.log(limit / value)) > 0:
                    missed[name] = off
        return missed

    def missed(self, figures: Mapping[str, float]) -> list[str]:
        """A phrase per limit that is missed: what was seen, and what was asked for."""
        phrases = []
        for name in self.excess(figures):
            rule = RULES[name]
            limit = f"{self.given[name]:.4g}"
            seen = rule.spelt.format(figures[rule.figure])
            phrases.append(f"{seen} ({'at most' if rule.most else 'at least'} {limit} was asked for)")
        return phrases

    def __str__(self) -> str:
        return ", ".join(f"{name}={value:g}" for name, value in self.given.items())
