"""Arms: plans whose counts may be shares of the prompt, and the settings that every policy is tried with."""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from winnow.errors import InputError
from winnow.plan import Plan
from winnow.reading import read_text

GRID = Path(__file__).with_name("grid.toml")
COSTS = ("rows", "bytes", "units", "pairs")
STEP = 16  # shares are rounded down to whole multiples of so many tokens, and so to whole pages
FULL = "full"
_SHARE = re.compile(r"\{(\d+)/(\d+)\}")
_ANY_LENGTH = 4096


@dataclass(frozen=True)
class Arm:
    """A plan as text, in which `{1/8}` stands for an eighth of the prompt's tokens, and the name that it has.

    adapter: what the model has besides, a directory or a name; None: nothing, or what the whole run has.
    """

    text: str
    name: str
    adapter: str | None = None

    @classmethod
    def of(cls, text: str, name: str | None = None, adapter: str | None = None) -> "Arm":
        """Raises InputError or PlanError where the text is no plan."""
        arm = cls(text, name or (f"{text}, {Path(adapter).name}" if adapter else text), adapter)
        arm.plan(_ANY_LENGTH)
        return arm

    def plan(self, length: int) -> Plan:
        """The plan for prompts of `length` tokens."""
        return Plan.parse(_SHARE.sub(lambda found: str(_share(*map(int, found.groups()), length)), self.text))

    @property
    def policies(self) -> str:
        """The names of its policies, joined by +."""
        return policies_of(self.plan(_ANY_LENGTH))


def policies_of(plan: Plan) -> str:
    """The names of the policies of a plan that change anything, joined by +."""
    return " + ".join(policy.name for policy in plan.policies.values() if not policy.identity) or FULL


def _share(top: int, bottom: int, length: int) -> int:
    if not 0 < top <= bottom:
        raise InputError(f"{{{top}/{bottom}}} must be a share of the prompt, above 0 and at most 1")
    return max(STEP, length * top // bottom // STEP * STEP)


def distinct_arms(arms: Iterable[Arm]) -> list[Arm]:
    """Full attention first, then the others, each once. Raises InputError where a name has two plans."""
    found = {FULL: Arm(FULL, FULL)}
    for arm in arms:
        if (other := found.setdefault(arm.name, arm)) != arm:
            raise InputError(f"{arm.name!r} names both {_told(other)} and {_told(arm)}; give each its own name")
    return list(found.values())


def _told(arm: Arm) -> str:
    return f"{arm.text} with {arm.adapter}" if arm.adapter else arm.text


@dataclass(frozen=True)
class Setting:
    """What is tried of a policy at a cost."""

    cost: str
    policy: str
    arm: Arm


@dataclass(frozen=True)
class Grid:
    """Settings to be tried at each cost: at most `caps[cost]` of what full attention takes, by what is counted."""

    caps: dict[str, dict[str, float]]
    settings: tuple[Setting, ...]

    @classmethod
    def read(cls, path: Path) -> "Grid":
        """Of a TOML file, a table per cost: `at_most`, and a list of plans for each policy.

        A table has the name of a count and a share of it, or another name and shares of several counts. Raises
        InputError where it is none, a count is unknown, or policies of a cost have different numbers of settings.
        """
        try:
            document = tomllib.loads(read_text(path))
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{path} is no TOML file: {error}") from error
        if loose := [name for name, table in document.items() if not isinstance(table, dict)]:
            raise InputError(f"{path}: {loose[0]} stands in no table; a cost begins with its name, such as [rows]")
        caps = {cost: _caps(path, cost, table.get("at_most")) for cost, table in document.items()}
        settings = tuple(each for cost, table in document.items() for each in _settings(path, cost, table))
        return cls(caps, settings)

    @cached_property
    def tries(self) -> dict[str, int]:
        """How many settings every policy has, by cost."""
        return {cost: len(self.of(cost)) // max(1, len(self.policies(cost))) for cost in self.caps}

    def of(self, cost: str) -> list[Setting]:
        return [each for each in self.settings if each.cost == cost]

    def policies(self, cost: str) -> list[str]:
        return list(dict.fromkeys(each.policy for each in self.of(cost)))

    def arms(self, costs: Sequence[str] = (), policies: Sequence[str] = ()) -> list[Arm]:
        """Those of the costs and policies named, each once; none named: of all. Raises InputError for unknown ones."""
        for name, given, known in (
            ("--cost", costs, tuple(self.caps)),
            ("--policy", policies, tuple(dict.fromkeys(each.policy for each in self.settings))),
        ):
            if missing := [each for each in given if each not in known]:
                raise InputError(f"{name} {missing[0]}: the grid has {', '.join(known)}")
        chosen = (s for s in self.settings if s.cost in (costs or self.caps))
        return list(dict.fromkeys(s.arm for s in chosen if not policies or s.policy in policies))


def _caps(path: Path, cost: str, given: Any) -> dict[str, float]:
    """How much of each count a cost may take. Raises InputError where that is not said."""
    caps = given if isinstance(given, dict) else {cost: given}
    if unknown := [count for count in caps if count not in COSTS]:
        raise InputError(f"{path}: no cost is called {unknown[0]!r}; there are {', '.join(COSTS)}")
    if not caps or not all(isinstance(share, float) for share in caps.values()):
        raise InputError(f"{path}: {cost} needs at_most, a share of what full attention takes, such as 0.25")
    return caps


def _settings(path: Path, cost: str, table: dict[str, Any]) -> Iterator[Setting]:
    plans = {policy: texts for policy, texts in table.items() if policy != "at_most"}
    counts = {policy: len(texts) for policy, texts in plans.items()}
    if len(set(counts.values())) > 1:
        few, many = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        raise InputError(
            f"{path}: at {cost}, {few} is tried with {counts[few]} settings and {many} with {counts[many]}; give every "
            "policy as many"
        )
    for policy, texts in plans.items():
        for text in texts:
            arm = Arm.of(text)
            if arm.policies != policy:
                raise InputError(f"{path}: {text} stands under {policy}, and is {arm.policies}")
            yield Setting(cost, policy, arm)


def read_arms(path: Path) -> list[Arm]:
    """Of a JSON file as `choose` writes it: {"arms": [{"plan": ..., "name": ..., "adapter": ...}]}.

    A name is the plan if left out, and the adapter's beside it. Raises InputError or PlanError where it is none.
    """
    try:
        document = json.loads(read_text(path))
        return [Arm.of(each["plan"], each.get("name"), each.get("adapter")) for each in document["arms"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        wanted = '{"arms": [{"plan": "snapkv(budget={1/8})"}]}'
        raise InputError(f"{path} holds no arms: {error!r:.80}; write {wanted}") from error
