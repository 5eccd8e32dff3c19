"""What is measured, in the order of its worth: plans that read little of what is kept, and the tasks they answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from winnow.parameters import that_matter
from winnow.policies.read.slowfast import SlowFast
from winnow.policies.read.trigger import Chance, Periodic, Trigger
from winnow.tasks import Task, task

from .matching import Costs, same_rate, same_units_quest, same_units_sink_recent, same_units_tidal

SHARES = (16, 8, 32)  # the budget is the prompt's length over one of these
BASE = {"sink": 4, "recent": 256, "bootstrap": 128}
# A slow step at the least every four steps, and the authors' setting, under which a listing has one in two sentences.
SCHEDULES: dict[str, dict[str, Any]] = {
    "often": {"interval": 4, "min_gap": 4},
    "rarely": {"interval": 96, "min_gap": 16},
}
SELECTORS: dict[str, dict[str, Any]] = {
    "peaks, memory 0.5": {"selector": "peaks", "pool": 13, "memory": 0.5},
    "peaks, memory 0.9": {"selector": "peaks", "pool": 13, "memory": 0.9},
    "pooled": {"selector": "pooled", "pool": 17},
    "attention": {"selector": "attention"},
    "alpha_fair": {"selector": "alpha_fair"},
    "persist": {"selector": "persist"},
    "peaks, no memory": {"selector": "peaks", "pool": 13, "memory": 0.0},
    "peaks, pool 9": {"selector": "peaks", "pool": 9, "memory": 0.5},
    "peaks, pool 17": {"selector": "peaks", "pool": 17, "memory": 0.5},
    "pooled 9": {"selector": "pooled", "pool": 9},
    "pooled 33": {"selector": "pooled", "pool": 33},
    "persist, reverse": {"selector": "persist", "fusion": "reverse"},
    "alpha_fair, no suppression": {"selector": "alpha_fair", "suppression": False},
    "alpha_fair, no prior": {"selector": "alpha_fair", "prior": False},
    "alpha_fair, reverse": {"selector": "alpha_fair", "fusion": "reverse"},
}
MAIN = tuple(SELECTORS)[:6]
BEST = {"often": "peaks, memory 0.5", "rarely": "peaks, memory 0.9"}  # for all arms that are not about selectors
SEED = 0  # of the random trigger


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
    others = [name for name in SELECTORS if name not in MAIN]
    first, *further = SHARES
    return [
        Arm("full", "full", "full"),
        *(_selector(name, first, schedule) for schedule in SCHEDULES for name in MAIN),
        *(arm for schedule in SCHEDULES for arm in _triggers(schedule)),
        *(arm for schedule in SCHEDULES for arm in _relatives(schedule)),
        *_presets(),
        *(_selector(name, share, schedule) for schedule in SCHEDULES for share in further for name in MAIN),
        *(_selector(name, first, schedule) for schedule in SCHEDULES for name in others),
        *_ablations(),
    ]


def selector_arm(name: str, share: int, schedule: str) -> str:
    """The name of an arm of a selector."""
    return f"{name}, 1/{share}, {schedule}"


def reference(schedule: str) -> str:
    """The arm that triggers, relatives and ablations are compared with."""
    return selector_arm(BEST[schedule], SHARES[0], schedule)


def _slowfast(schedule: str, selector: str | None = None, **changes: Any) -> str:
    parameters = {**BASE, **SCHEDULES[schedule], **SELECTORS[selector or BEST[schedule]], **changes}
    parameters = that_matter(SlowFast, SlowFast.matters, parameters)  # a schedule's gap is of sentences only
    spelled = [f"{name}={value if name == 'interval' else repr(value)}" for name, value in parameters.items()]
    return f"slowfast(budget={{budget}}, {', '.join(spelled)})"


def _selector(name: str, share: int, schedule: str) -> Arm:
    return Arm(selector_arm(name, share, schedule), f"selectors, {schedule}", _slowfast(schedule, name), share)


def _triggers(schedule: str) -> Iterator[Arm]:
    """Periodic and random ones make as many steps slow as the sentence trigger of the reference did."""

    def chance(interval: int) -> Trigger:
        return Chance(interval, random.Random(SEED))

    for name, trigger in (("periodic", Periodic), ("random", chance)):
        plan, match = _slowfast(schedule, trigger=name, interval="{interval}", seed=SEED), partial(same_rate, trigger)
        yield Arm(f"{name}, {schedule}", "triggers", plan, tasks=LISTINGS, like=reference(schedule), match=match)
    if schedule == "rarely":  # "often", the interval alone says when
        yield Arm(f"sentence end, {schedule}", "triggers", _slowfast(schedule, trigger_on="end"), tasks=LISTINGS)
        yield Arm("none", "triggers", _slowfast(schedule, trigger="none"), tasks=LISTINGS)


def _relatives(schedule: str) -> Iterator[Arm]:
    """They read as many units as the reference did; those of their own presets cannot read so few."""
    plans = (
        ("quest", "quest(page=16, budget={pages}, dense_layers=0)", same_units_quest),
        ("tidal from layer 0", "tidal(layers=[0], budget={selected})", same_units_tidal),
        ("sink_recent", "sink_recent(sink=4, recent={recent})", same_units_sink_recent),
    )
    for name, plan, match in plans:
        yield Arm(f"{name}, {schedule}", "relatives", plan, tasks=LISTINGS, like=reference(schedule), match=match)


def _presets() -> Iterator[Arm]:
    """Relatives with layers that read everything, as they are meant."""
    yield Arm("quest, 2 dense layers", "relatives", "quest(page=16, budget={budget}, dense_layers=2)", tasks=LISTINGS)
    yield Arm("tidal, layers 2 and 4", "relatives", "tidal(layers=[2, 4], budget={budget})", tasks=LISTINGS)


def _ablations() -> Iterator[Arm]:
    """One parameter at a time; the value of the reference is left out."""
    values: dict[str, dict[str, tuple[Any, ...]]] = {
        "rarely": {
            "bootstrap": (16, 64, 256),
            "interval": (32, 8),
            "min_gap": (4,),
            "recent_mode": ("anchored",),
            "far": (0.0,),
            "half_life": (None, 64),
        },
        "often": {
            "interval": (2, 3),
            "recent": (64,),
            "recent_mode": ("anchored",),
            "publish_delay": (1, 2, 4),
            "layer_groups": (2,),
            "bootstrap": (16,),
        },
    }
    for schedule, parameters in values.items():
        for parameter, tried in parameters.items():
            for value in tried:
                gap = {"min_gap": min(value, 16)} if parameter == "interval" else {}
                plan = _slowfast(schedule, **{parameter: value}, **gap)
                yield Arm(f"{parameter}={value}, {schedule}", "ablations", plan, tasks=LISTINGS)
