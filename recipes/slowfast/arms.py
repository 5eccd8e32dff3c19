"""What is measured, in the order of its worth: plans that read little of what is kept, and the tasks they answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from winnow.policies.read.trigger import Chance, Periodic, Trigger
from winnow.tasks import Task, task

SHARES = (16, 8, 32, 64)  # the budget is the prompt's length over one of these
BASE = {"sink": 4, "recent": 256, "interval": 96, "min_gap": 16, "bootstrap": 16}
SELECTORS: dict[str, dict[str, Any]] = {
    "peaks": {"selector": "peaks", "pool": 17, "memory": 0.9},
    "pooled 17": {"selector": "pooled", "pool": 17},
    "attention": {"selector": "attention"},
    "alpha_fair": {"selector": "alpha_fair"},
    "peaks, no memory": {"selector": "peaks", "pool": 17, "memory": 0.0},
    "pooled 9": {"selector": "pooled", "pool": 9},
    "pooled 33": {"selector": "pooled", "pool": 33},
    "persist": {"selector": "persist"},
    "persist, reverse": {"selector": "persist", "fusion": "reverse"},
    "no suppression": {"selector": "alpha_fair", "suppression": False},
    "no prior": {"selector": "alpha_fair", "prior": False},
    "no cross-head term": {"selector": "alpha_fair", "cross_head": False},
    "alpha_fair, reverse": {"selector": "alpha_fair", "fusion": "reverse"},
}
MAIN = ("peaks", "pooled 17", "attention", "alpha_fair")
SEED = 0  # of the random trigger
BEST = "peaks"  # the selector of all arms that are not about selectors


@dataclass(frozen=True)
class Asked:
    """A task with its parameters. forced: its reply is fed token by token, and what the model predicts is scored."""

    task: str
    parameters: Mapping[str, Any]
    forced: bool = False

    def make(self, haystack: str | None) -> Task:
        """haystack: a directory of texts, where the task hides its needles in text."""
        text = {} if haystack is None or self.task in ("kv", "kv_list") else {"haystack": haystack}
        return task(self.task, **self.parameters, **text)


TASKS = {
    "multi_needle-16": Asked("multi_needle", {"needles": 16}),
    "multi_needle-16-forced": Asked("multi_needle", {"needles": 16}, forced=True),
    "kv_list-16-forced": Asked("kv_list", {"pairs": 16}, forced=True),
    "multi_needle-4": Asked("multi_needle", {"needles": 4}),
    "passkey": Asked("passkey", {}),
    "number": Asked("number", {}),
    "kv": Asked("kv", {}),
}
LISTINGS = tuple(TASKS)[:4]  # long enough for several slow steps


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


@dataclass(frozen=True)
class Arm:
    """A plan, in which `{budget}` stands for the prompt's length over `share`, and the tasks it is measured on.

    like, match: the arm whose costs on the same task and length fill the other gaps of the plan, and how.
    """

    name: str
    group: str
    plan: str
    share: int = 16
    tasks: tuple[str, ...] = tuple(TASKS)
    like: str | None = None
    match: Callable[[Costs], dict[str, int]] | None = None

    def text(self, length: int, costs: Costs | None = None) -> str:
        """The plan for prompts of `length` tokens. costs: of the arm `like`, where there is one."""
        gaps = {"budget": length // self.share}
        if self.match is not None:
            assert costs is not None
            gaps |= self.match(costs)
        return self.plan.format(**gaps)


def arms() -> list[Arm]:
    """Every arm once, the most important first; names are unique."""
    return [
        Arm("full", "full", "full"),
        *(_selector(name, 16, 16) for name in MAIN),
        *_triggers(),
        *_relatives(),
        *(_selector(name, share, 16) for share in SHARES[1:] for name in MAIN),
        *(_selector(name, 16, 64) for name in MAIN),
        *(_selector(name, 16, 16) for name in SELECTORS if name not in MAIN),
        *_ablations(),
        *(_selector(name, share, 16) for share in SHARES[1:] for name in SELECTORS if name not in MAIN),
        *(_selector(name, share, 64) for share in SHARES[1:] for name in MAIN),
        *(_selector(name, share, 64) for share in SHARES for name in SELECTORS if name not in MAIN),
    ]


def selector_arm(name: str, share: int, bootstrap: int) -> str:
    """The name of an arm of a selector."""
    return f"{name}, 1/{share}, bootstrap {bootstrap}"


REFERENCE = selector_arm(BEST, 16, 16)  # what triggers, relatives and ablations are compared with


def _slowfast(selector: str = BEST, **changes: Any) -> str:
    parameters = {**BASE, **SELECTORS[selector], **changes}
    spelled = [f"{name}={value if name == 'interval' else repr(value)}" for name, value in parameters.items()]
    return f"slowfast(budget={{budget}}, {', '.join(spelled)})"


def _selector(name: str, share: int, bootstrap: int) -> Arm:
    group = "selectors" if bootstrap == BASE["bootstrap"] else f"bootstrap {bootstrap}"
    return Arm(selector_arm(name, share, bootstrap), group, _slowfast(name, bootstrap=bootstrap), share)


def _triggers() -> Iterator[Arm]:
    """Periodic and random ones make as many steps slow as the sentence trigger of the reference did."""
    made: dict[str, Callable[[int], Trigger]] = {"periodic": Periodic, "random": _by_chance}
    for name, trigger in made.items():
        plan, match = _slowfast(trigger=name, interval="{interval}", seed=SEED), partial(same_rate, trigger)
        yield Arm(f"{name} trigger", "triggers", plan, tasks=LISTINGS, like=REFERENCE, match=match)
    yield Arm("no trigger", "triggers", _slowfast(trigger="none"), tasks=LISTINGS)
    yield Arm("sentence end", "triggers", _slowfast(trigger_on="end"), tasks=LISTINGS)


def _relatives() -> Iterator[Arm]:
    """They read as many units as the reference did; those of their own presets cannot read so few."""
    plans = (
        ("quest", "quest(page=16, budget={pages}, dense_layers=0)", same_units_quest),
        ("tidal", "tidal(layers=[0], budget={selected})", same_units_tidal),
        ("sink_recent", "sink_recent(sink=4, recent={recent})", same_units_sink_recent),
    )
    for name, plan, match in plans:
        yield Arm(name, "relatives", plan, tasks=LISTINGS, like=REFERENCE, match=match)
    yield Arm("quest, 2 dense layers", "relatives", "quest(page=16, budget={budget}, dense_layers=2)", tasks=LISTINGS)
    yield Arm("tidal, layers 2 and 4", "relatives", "tidal(layers=[2, 4], budget={budget})", tasks=LISTINGS)


def _ablations() -> Iterator[Arm]:
    """One parameter at a time; the value of the reference is left out."""
    values: dict[str, tuple[Any, ...]] = {
        "min_gap": (4, 8, 16),
        "interval": (32, 64, 96, 128),
        "bootstrap": (2, 128),
        "recent": (64,),
        "recent_mode": ("anchored",),
        "publish_delay": (1, 2, 4, 8),
        "layer_groups": (2,),
    }
    for parameter, tried in values.items():
        for value in tried:
            if BASE.get(parameter) != value:
                plan = _slowfast(**{parameter: value})
                yield Arm(f"{parameter}={value}", "ablations", plan, tasks=LISTINGS)


def same_rate(trigger: Callable[[int], Trigger], costs: Costs) -> dict[str, int]:
    """The interval at which a trigger makes as many steps slow as were, or as nearly so as it can."""

    def missed(interval: int) -> int:
        fired = 0
        for steps in costs.steps:
            each = trigger(interval)
            fired += sum(each.fires(token=0) for _ in range(steps))
        return abs(fired - costs.slow)

    return {"interval": min(range(1, max(costs.steps) + 2), key=missed)}


def _by_chance(interval: int) -> Trigger:
    return Chance(interval, random.Random(SEED))


def same_units_quest(costs: Costs) -> dict[str, int]:
    """A layer reads the budget but half a page, the newest being half full on average, and a bound per page."""
    return {"pages": 16 * max(2, round((costs.read + 8 - costs.kept / 16) / 16))}


def same_units_tidal(costs: Costs) -> dict[str, int]:
    """One layer reads everything, the others the budget and the current unit."""
    return {"selected": max(1, round((costs.layers * costs.read - costs.kept) / (costs.layers - 1)) - 1)}


def same_units_sink_recent(costs: Costs) -> dict[str, int]:
    """Every layer reads both."""
    return {"recent": max(1, round(costs.read) - 4)}
