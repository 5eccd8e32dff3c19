"""What is trained and measured: heads of several sizes and training sets, plans at equal budgets, Locret's parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from recipes.needle.conversations import Conversation

from winnow.learn.heads_recipe import HeadsRecipe
from winnow.policies.keep.budgeted import LOCAL

MAIN = "needle-heads"  # what ships
SINK = 4
SHARES = (8, 16, 32)  # the budget is the prompt's length over one of these
FOUR = ("passkey", "number", "kv", "multi_needle")
SETS: dict[str, Callable[[Conversation], bool]] = {
    "facts": lambda said: said.is_text,  # sentences hidden in prose
    "records": lambda said: not said.is_text,  # contexts full of key-value pairs or lines
    "mixture": lambda said: True,
}


@dataclass(frozen=True)
class Heads:
    """Retaining heads to train. data: the name of a set."""

    name: str
    data: str
    recipe: HeadsRecipe


@dataclass(frozen=True)
class Arm:
    """A plan, at a budget that takes the place of `{budget}`, and the tasks it is measured on.

    `{more}` is the budget and what `local` adds to it, for plans that have no tail beside the budget, and `{recent}` is
    that without attention sinks. group: the table that it belongs to. heads: the name of the heads, if it needs any.
    examples: per depth and task.
    """

    name: str
    group: str
    plan: str
    heads: str | None = None
    lengths: tuple[int, ...] = (4096,)
    shares: tuple[int, ...] = SHARES
    tasks: tuple[str, ...] = FOUR
    examples: int = 20

    def plans(self, length: int) -> list[str]:
        """The plan at every budget, for prompts of `length` tokens."""
        budgets = [length // share for share in self.shares]
        return [
            self.plan.format(budget=budget, more=budget + LOCAL, recent=budget + LOCAL - SINK) for budget in budgets
        ]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def heads() -> list[Heads]:
    """What ships first; the others, which are compared with each other, have a fifth of its steps."""
    made = [Heads(MAIN, "facts", HeadsRecipe(width=256, steps=3000, learning_rate=1e-3, bf16=True))]
    for name, data, width in (
        ("facts-256", "facts", 256),
        ("mixture-256", "mixture", 256),
        ("records-256", "records", 256),
        ("facts-64", "facts", 64),
        ("facts-1024", "facts", 1024),
    ):
        made.append(Heads(name, data, HeadsRecipe(width=width, steps=600, learning_rate=1e-3, bf16=True)))
    return made


def arms() -> list[Arm]:
    """In the order of their worth."""
    number, rest = ("number",), ("passkey", "kv", "multi_needle")
    made = [
        Arm("full", "policies", "full", shares=(1,)),
        Arm("locret", "policies", "locret(budget={budget})", MAIN),
        *(Arm(name, "policies", plan, shares=(16,), tasks=number) for name, plan in OTHERS),
        *(Arm(name, "curve", plan, shares=(8, 32), tasks=number, examples=2) for name, plan in OTHERS),
        *(Arm(name, "other tasks", plan, shares=(16,), tasks=rest, examples=2) for name, plan in OTHERS),
        Arm("full", "long", "full", lengths=(16384,), shares=(1,)),
    ]
    for share in SHARES:
        examples = 20 if share == SHARES[0] else 8
        plan = "locret(budget={budget})"
        made.append(Arm(f"locret, 1/{share}", "long", plan, MAIN, (16384,), (share,), examples=examples))
    small = {"tasks": number, "shares": (8, 16), "examples": 10}
    for each in heads()[1:]:
        made.append(Arm(each.name, "heads", "locret(budget={budget})", each.name, **small))  # type: ignore[arg-type]
    for name, options in (
        ("no stabilizers", "stabilizers=0"),
        ("32 stabilizers", "stabilizers=32"),
        ("64 stabilizers", "stabilizers=64"),
        ("128 stabilizers", "stabilizers=128"),
        ("240 stabilizers", "stabilizers=240"),
        ("original positions", "positions='original'"),
        ("chunks of 128", "chunk=128"),
        ("chunks of 2048", "chunk=2048"),
        ("one eviction", "chunk=None"),
        ("no tail", "local=0"),
        ("evicts in decode", "decode_chunk=8"),
    ):
        plan = f"locret(budget={{budget}}, {options})"
        made.append(Arm(name, "parts", plan, MAIN, **{**small, "shares": (16,)}))  # type: ignore[arg-type]
    return made


# snapkv as these pages have it: it evicts every 512 tokens, and the prompt's tail stays beside the budget unasked.
UNASKED = "chunk=512, local=None, window=32, kernel=5, pooling='avg'"
OTHERS = (
    ("random_heads", "random_heads(budget={budget})"),
    ("streaming", f"streaming(sink={SINK}, recent={{recent}})"),
    ("sirllm", "sirllm(budget={budget})"),
    ("sirllm, as its code", "sirllm(budget={budget}, surprisal_of='repeat')"),
    ("h2o", "h2o(budget={budget}, decode_chunk=None)"),
    ("scissorhands", "scissorhands(budget={budget})"),
    ("snapkv", f"snapkv(budget={{budget}}, {UNASKED})"),
    ("snapkv, whole prompt", "snapkv(budget={budget}, local=None, window=32, kernel=5, pooling='avg')"),
    ("snapkv, question known", "snapkv(budget={more}, window=32, kernel=5, pooling='avg')"),
)
