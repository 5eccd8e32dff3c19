"""Plans that cost what another one did: as many slow steps, or as many units read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from winnow.policies.read.trigger import Trigger


@dataclass(frozen=True)
class Costs:
    """What an arm has cost. steps: decode steps per example; slow: of all of them, how many were slow.

    read, kept: units per step, KV head and layer, on average. layers: of the model.
    """

    steps: tuple[int, ...]
    slow: int
    read: float
    kept: float
    layers: int


def same_rate(trigger: Callable[[int], Trigger], costs: Costs) -> dict[str, int]:
    """The interval at which a trigger makes as many steps slow as were, or as nearly so as it can."""

    def missed(interval: int) -> int:
        fired = 0
        for steps in costs.steps:
            each = trigger(interval)
            fired += sum(each.fires(token=0) for _ in range(steps))
        return abs(fired - costs.slow)

    return {"interval": min(range(1, max(costs.steps) + 2), key=missed)}


def same_units_quest(costs: Costs) -> dict[str, int]:
    """A layer reads the budget but half a page, the newest being half full on average, and a bound per page."""
    return {"pages": 16 * max(2, round((costs.read + 8 - costs.kept / 16) / 16))}


def same_units_tidal(costs: Costs) -> dict[str, int]:
    """One layer reads everything, the others the budget and the current unit."""
    return {"selected": max(1, round((costs.layers * costs.read - costs.kept) / (costs.layers - 1)) - 1)}


def same_units_sink_recent(costs: Costs) -> dict[str, int]:
    """Every layer reads both."""
    return {"recent": max(1, round(costs.read) - 4)}
