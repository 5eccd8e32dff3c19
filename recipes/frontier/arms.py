"""What is measured, the most important first: every policy alone, and plans that join several of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from recipes.locret.arms import UNASKED

from winnow.plan import Plan
from winnow.policies.keep.budgeted import LOCAL
from winnow.policies.registry import POLICIES

TASKS = ("passkey", "number", "kv", "multi_needle", "variables")
VERBS = ("full", "prompt", "compute", "keep", "prefill", "read", "store", "composed")
SINK = 4


@dataclass(frozen=True)
class Arm:
    """An adapter of the bundled model, or None, and a plan. share: the budgets are the prompt's length over it.

    In the plan `{budget}` stands for that, `{kept}` for it and the tail of the prompt that `locret` and its like keep
    beside it, `{recent}` for that without attention sinks, `{half}` for half the budget, `{pages}` for whole pages,
    `{most}` for thirteen sixteenths of the prompt whatever the share.
    """

    plan: str
    share: int = 8
    adapter: str | None = None

    @property
    def name(self) -> str:
        """Also that of its files; names are unique."""
        budgeted = f" 1/{self.share}" if "{" in self.plan else ""
        return f"{self.plan}{budgeted}" + (f", {self.adapter}" if self.adapter else "")

    @property
    def verb(self) -> str:
        """One of `VERBS`."""
        policies = Plan.parse(self.text(4096)).policies
        named = [verb for verb, policy in policies.items() if not policy.identity]
        return "full" if not named else named[0] if len(named) == 1 else "composed"

    def text(self, length: int) -> str:
        """The plan for prompts of `length` tokens."""
        budget = length // self.share
        kept = budget + LOCAL
        most = length * 13 // 16
        gaps = {"budget": budget, "half": budget // 2, "kept": kept, "recent": kept - SINK, "most": most}
        return self.plan.format(pages=kept // 16 * 16, **gaps)


OFTEN = "slowfast(budget={half}, recent=64, interval=4, min_gap=4, memory=0.5)"
LOCRET, SNAPKV = "locret(budget={budget})", f"snapkv(budget={{budget}}, {UNASKED})"
# One eviction, at the end, when the question has been read.
KNOWING = "snapkv(budget={kept}, window=32, kernel=5, pooling='avg')"

PROMPT = ("random_drop(keep=0.5)", "prompt_compression(keep=0.65)")
COMPUTE = (
    "lazyllm",
    "speed(cutoff=6)",
    "pop(cutoff=6)",
    "swiftkv(cutoff=6)",
    "static_prune(keep=0.5, layers=4)",
)
KEEP = (
    LOCRET,
    SNAPKV,
    KNOWING,
    "h2o(budget={budget}, decode_chunk=None)",
    "scissorhands(budget={budget})",
    "sirllm(budget={budget})",
    "streaming(sink=4, recent={recent})",
    "random_heads(budget={budget})",
)
READ = (
    "slowfast(budget={budget}, interval=4, min_gap=4, memory=0.5)",
    "slowfast(budget={budget})",
    "quest(page=16, budget={pages})",
    "tidal(budget={budget})",
    "sink_recent(sink=4, recent={recent})",
)
TRAINED = (("speed(cutoff=2)", "needle-speed-2"), ("speed(cutoff=6)", "needle-speed-6"))
COMPOSED = (
    (f"speed(cutoff=2) + {LOCRET} + {OFTEN}", "needle-speed-2"),
    (f"speed(cutoff=2) + {KNOWING} + {OFTEN}", "needle-speed-2"),
    (f"speed(cutoff=2) + {LOCRET}", "needle-speed-2"),
    (f"speed(cutoff=2) + {OFTEN}", "needle-speed-2"),
    (f"speed(cutoff=6) + {LOCRET} + {OFTEN}", "needle-speed-6"),
    (f"{LOCRET} + {OFTEN}", None),
    (f"lazyllm + {OFTEN}", None),
    (f"lazyllm + {LOCRET}", None),
    (f"{KNOWING} + {OFTEN}", None),
    (f"speed(cutoff=2) + {SNAPKV} + {OFTEN}", "needle-speed-2"),
    ("streaming(sink=4, recent={recent}) + quest(page=16, budget=128)", None),
)


# What gives all of the savings at once, with units enough for lists of pairs.
HALF = "speed(cutoff=2) + locret(budget={budget})"
ALL_BUT_FEW = "speed(cutoff=2) + locret(budget={most}) + slowfast(budget={budget}, interval=2, min_gap=2, memory=0.5)"
WIDE = (HALF, HALF + " + slowfast(budget={half}, interval=2, min_gap=2, memory=0.5)")


def arms() -> list[Arm]:
    """Every arm once. A registered policy that none of the tables names is measured at its preset."""
    singles = [*PROMPT, *COMPUTE, *KEEP, *READ]
    named = {plan.partition("(")[0] for plan in singles}
    others = [name for name, policy in POLICIES.items() if not policy.identity and name not in named]
    return [
        Arm("full"),
        *(Arm(plan) for plan in (*singles, *others)),
        *(Arm(plan, adapter=adapter) for plan, adapter in (*TRAINED, *COMPOSED)),
        *(Arm(plan, 2, "needle-speed-2") for plan in WIDE),
        Arm(ALL_BUT_FEW, 8, "needle-speed-2"),
        *_other_budgets(),
    ]


def _other_budgets() -> Iterator[Arm]:
    """More points of the frontier."""
    for share in (4, 16):
        yield from (Arm(plan, share) for plan in (*KEEP, *READ))
        yield from (Arm(plan, share, adapter) for plan, adapter in COMPOSED[:6])
    yield Arm("lazyllm(cumulative=[0.6, 0.4, 0.2])")
    yield Arm("lazyllm(cumulative=[0.2, 0.1, 0.05])")
