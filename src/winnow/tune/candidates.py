"""The plans that `tune` tries: a few parameters of every policy, and then what is best of each verb joined."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from winnow.engine.depth import measure_depth
from winnow.errors import InputError, ModelError, PlanError
from winnow.evaluation.evaluate import Case
from winnow.plan import Plan
from winnow.policies.base import ModelShape
from winnow.policies.compute.schedule import first_layer
from winnow.runtime.llm import LLM

AGAIN = 8  # after so many other policies comes the next setting of one
STEP = 32  # budgets are whole multiples of so many units, and so whole pages


@dataclass(frozen=True)
class Share:
    """A count of units, as a share of the median prompt."""

    of: float

    def count(self, prompt: int) -> int:
        return max(1, round(self.of * prompt / STEP)) * STEP


@dataclass(frozen=True)
class Depth:
    """A layer, by the share of the layers that are below it; higher where those do not find what was said before."""

    of: Fraction

    def layer(self, shape: ModelShape) -> int:
        return first_layer(shape, self.of)


QUARTER = Depth(Fraction(1, 4))


def _budgets(*shares: float, **others: Any) -> list[dict[str, Any]]:
    return [{"budget": Share(share), **others} for share in shares]


# Of snapkv for prompts that do not end with what is asked.
UNASKED = {"chunk": 512, "local": None, "window": 32, "kernel": 5, "pooling": "avg"}

# What is tried of a policy: each stands here, or in LEFT_OUT with the reason. First those of each verb that lost least
# at equal costs on a pre-trained model, on validation (docs/results/quality.md): time may not suffice for all.
GRID: dict[str, list[dict[str, Any]]] = {
    "fastkv": [
        {"keep": 0.6, "layer": QUARTER, "window": Share(1 / 8)},
        {"keep": 0.5},
        {},
        {"keep": 0.4, "layer": QUARTER, "window": Share(1 / 8)},
    ],
    "sketch": _budgets(1 / 4, 1 / 8, 1 / 16),
    "quantized": [{"bits": 8}, {}, {"value_bits": 2, "group": 64, "value_group": 32, "residual": 0, "chunk": 256}],
    "minference": [{}, {"slash": 100}, {"vertical": 500, "slash": 400}],
    "snapkv": [
        *_budgets(1 / 2, 1 / 4, 1 / 8),
        *_budgets(1 / 4, 1 / 8, **UNASKED),
        *_budgets(1 / 8, by_head="adaptive"),
        *_budgets(1 / 8, weigh="output"),
    ],
    "lazyllm": [{}, {"cumulative": [0.8, 0.6, 0.4]}, {"cumulative": [0.4, 0.2, 0.1]}, {"keep": 0.8}],
    "slowfast": [*_budgets(1 / 4, 1 / 8), *_budgets(1 / 4, 1 / 8, interval=4, min_gap=4)],
    "flexprefill": [{}, {"gamma": 0.95}],
    "lagkv": _budgets(1 / 2, 1 / 4),
    "static_prune": [{}, {"keep": 0.7}],
    "kvzip": _budgets(1 / 2, 1 / 4, 1 / 8),
    "pop": [{"cutoff": 0.75}, {"cutoff": 0.875}],
    "xattention": [{}, {"stride": 8}, {"threshold": 0.8}],
    "tova": _budgets(1 / 2, 1 / 4, decode_chunk=None),
    "h2o": _budgets(1 / 2, 1 / 4, decode_chunk=None),
    "streaming": [{"recent": Share(1 / 2)}, {"recent": Share(1 / 4)}],
    "speed": [{"cutoff": 0.5}, {"cutoff": 0.625}, {"cutoff": 0.75}, {"cutoff": 0.875}],
    "quest": _budgets(1 / 4, 1 / 8, 1 / 16),
    "expected_attention": [*_budgets(1 / 2, 1 / 4, 1 / 8), *_budgets(1 / 8, weigh="output")],
    "scissorhands": _budgets(1 / 2, 1 / 4),
    "keydiff": _budgets(1 / 2, 1 / 4, 1 / 8),
    "tidal": _budgets(1 / 8, 1 / 16),
    "infllm": [{"recent": Share(1 / 4)}, {"recent": Share(1 / 8)}],
    "locret": _budgets(1 / 4, 1 / 8, 1 / 16),
    "kvzap": [{"threshold": -4.0}, {"threshold": -6.0}, {"threshold": -8.0}],
    "lococo": _budgets(1 / 2, 1 / 4, 1 / 8),
    "lococo_locret": _budgets(1 / 4, 1 / 8),
    "indexer": _budgets(1 / 4, 1 / 8, 1 / 16),
    "knorm": _budgets(1 / 2, 1 / 4),
    "sirllm": _budgets(1 / 2, 1 / 4),
    "prompt_compression": [{}],
}
# Nobody would run these but to compare with them.
LEFT_OUT: dict[str, str] = {
    "random_drop": "a control of lazyllm",
    "duo": "needs gates trained for the model",
    "swiftkv": "shares caches that nobody trained, to measure its cost",
    "random_heads": "a control of locret",
    "sink_recent": "a control of slowfast",
    "hf_quantized": "a control of quantized",
    "mapped": "computes what plain does, in memory of a chosen size",
}


@dataclass(frozen=True)
class Found:
    """Plans that can run, and a line for each policy that cannot, with the reason."""

    plans: list[Plan]
    skipped: list[str]


def single_plans(llm: LLM, cases: Sequence[Case]) -> Found:
    """The plans of one policy. Policies that the model cannot run are skipped, with the first reason."""
    median = round(statistics.median(len(case.ids) for case in cases))
    measure_depth(llm.decoder)
    places: dict[Plan, int] = {}
    reasons: dict[str, str] = {}
    for place, (name, settings) in enumerate(GRID.items()):
        for turn, parameters in enumerate(settings):
            try:
                plan = Plan.parse(_spelt(name, parameters, median, llm.decoder.shape))
                _check(llm, plan, cases)
            except (PlanError, ModelError, InputError) as error:
                reasons.setdefault(name, str(error))
            else:
                places.setdefault(plan, place + AGAIN * turn)
    tried = {policy.name for plan in places for policy in plan.policies.values()}
    skipped = [f"{name} is left out: {reason}" for name, reason in reasons.items() if name not in tried]
    return Found(sorted(places, key=lambda plan: places[plan]), skipped)


def joined_plans(llm: LLM, by_verb: Mapping[str, Sequence[Plan]], cases: Sequence[Case]) -> list[tuple[Plan, ...]]:
    """Every way to join plans of one policy, of two verbs or more; those that cannot be run together are left out."""
    ways = []
    for chosen in itertools.product(*([None, *plans] for plans in by_verb.values())):
        members = tuple(plan for plan in chosen if plan is not None)
        if len(members) > 1:
            try:
                _check(llm, join(members), cases)
            except (PlanError, ModelError, InputError):
                continue
            ways.append(members)
    return ways


def join(plans: Sequence[Plan]) -> Plan:
    """One plan that does what each of `plans`, of different verbs, does."""
    return Plan.parse(" + ".join(map(str, plans)))


def verb_of(plan: Plan) -> str:
    """The verb of a plan of one policy."""
    return next(verb for verb, policy in plan.policies.items() if not policy.identity)


def _spelt(name: str, parameters: Mapping[str, Any], prompt: int, shape: ModelShape) -> str:
    def settled(value: Any) -> Any:
        if isinstance(value, Share):
            return value.count(prompt)
        return value.layer(shape) if isinstance(value, Depth) else value

    return f"{name}({', '.join(f'{key}={settled(value)!r}' for key, value in parameters.items())})"


def _check(llm: LLM, plan: Plan, cases: Sequence[Case]) -> None:
    """Raise what `generate` would raise for the shortest and for the longest prompt."""
    for case in (min(cases, key=_tokens), max(cases, key=_tokens)):
        llm.check([case.ids], case.params, plan=plan)


def _tokens(case: Case) -> int:
    return len(case.ids)
