"""The most bytes that a sequence under a plan can ever hold: what a request is admitted by."""

from dataclasses import dataclass

from winnow.cache.memory import COPIED
from winnow.plan import Plan
from winnow.policies.base import ModelShape
from winnow.policies.compute.base import Deep

POSITION = SCORE = 4  # bytes of a float32; a position has twice as many


@dataclass(frozen=True)
class Bound:
    """The most bytes that one sample of a request ever holds, and how many of these all its samples hold in common."""

    alone: int
    shared: int = 0

    def of(self, samples: int) -> int:
        """The most that so many of them hold together."""
        return samples * self.alone - max(0, samples - 1) * self.shared


def bound_bytes(plan: Plan, shape: ModelShape, prompt: int, new: int, chunk: int, deep: Deep | None = None) -> int:
    """Bytes in memory of units and of all that policies hold beside them, at most, for `new` tokens after a prompt.

    See `most_held`.
    """
    return sum(most_held(plan, shape, prompt, new, chunk, deep))


def most_held(
    plan: Plan, shape: ModelShape, prompt: int, new: int, chunk: int, deep: Deep | None = None
) -> tuple[int, int]:
    """The most bytes of units, and of all that policies hold beside them, for `new` tokens after a prompt.

    prompt: its tokens, before anything shortens it; chunk: the most rows of it in a step. deep: what the compute policy
    says of it. Sums of closed formulas, each of which may be above what is held, never below.
    """
    units = most_units(plan, shape, prompt, new, chunk, deep or Deep.none(prompt))
    scored = plan.keep.score is not None
    figures = [
        SCORE * (scored and plan.keep.pattern(layer).held) + 2 * POSITION * plan.keep.per_head
        for layer in shape.contexts
    ]
    held = _held(plan, shape, prompt, units)
    noted = sum(count * figure for count, figure in zip(units, figures, strict=True))
    beside = _parked(plan, shape, prompt, new, deep) + plan.read.bound(shape, prompt, new)
    return plan.store.in_memory(shape.kv_heads * held), shape.kv_heads * noted + beside + _told(
        plan, shape, prompt + new
    )


def shared_bytes(plan: Plan, shape: ModelShape, prompt: int) -> int:
    """How many of these bytes forks at the end of the prompt have in common until the last of them ends.

    The prompt's units in layers from which nothing ever goes; elsewhere a fork may come to have units of its own, and
    of a prompt that is shortened too little may be left to be shared.
    """
    own = plan.shortcut is not None or plan.read.reach is not None
    if prompt <= COPIED or own or not plan.keep.identity or not plan.store.identity:
        return 0
    return prompt * shape.kv_heads * shape.unit_bytes * shape.windows.count(None)


def _held(plan: Plan, shape: ModelShape, prompt: int, units: list[int]) -> int:
    """Bytes of so many units per layer, of a KV head: where some may yet be evicted by choice they are held as they
    came; and so are those of a prompt whose tokens come all at once, in one layer at a time where they change with it.
    """
    gates, total, passing = plan.gates(shape), 0, 0
    evicts = plan.keep.next_eviction(0, prompt) is not None
    later = plan.store.next_change(prompt - 1, prompt) != prompt
    chosen_below = gates.all_at_once if gates.forgets else 0
    for layer, count in zip(shape.contexts, units, strict=True):
        as_it_came, late = count * shape.unit_bytes, layer.index >= gates.gathers
        if plan.keep.pattern(layer).held or evicts or layer.index < chosen_below or (late and later):
            total += as_it_came
            continue
        settled = plan.store.nbytes(count, shape)
        total, passing = total + settled, max(passing, late * (as_it_came - settled))
    return total + passing


def most_units(plan: Plan, shape: ModelShape, prompt: int, new: int, chunk: int, deep: Deep) -> list[int]:
    """Per layer, the most units that a KV head holds; 0 where a layer uses another one's."""
    gates, chunk = plan.gates(shape), plan.step_rows(chunk)
    from_prompt = plan.compute.layer_tokens(shape, prompt, deep).units
    returns = gates.revives or gates.forgets > 0  # then a layer has, or has had, what it lacks after the prompt
    most = []
    for layer, context in enumerate(shape.contexts):
        if layer in gates.fills and gates.fills[layer].holder != layer:
            most.append(0)
            continue
        count = (prompt if returns else min(prompt, from_prompt[layer])) + max(new, plan.keep.repeated(prompt))
        if layer in gates.self_only:
            count += min(chunk, prompt + new)  # rows of a step, until it ends
        limit = plan.bound(gates, prompt, new, chunk, context)
        most.append(count if limit is None or layer >= gates.gathers else min(count, limit))
    return most


def _parked(plan: Plan, shape: ModelShape, prompt: int, new: int, deep: Deep | None) -> int:
    """Hidden states of stopped tokens and their positions, the positions of those that go on, and votes for them."""
    each, gates = shape.hidden * shape.element_bytes + 2 * POSITION, plan.gates(shape)
    stopped = sum(gate.waits or gate.stopped == "parked" for gate in gates.each)
    votes = SCORE * shape.q_heads * prompt * len(gates.signals[False]) * gates.polls
    return stopped * (prompt + new) * each + votes + 2 * POSITION * (0 if deep is None else len(deep))


def _told(plan: Plan, shape: ModelShape, tokens: int) -> int:
    """How surprising tokens are, and the last row, of which the next one's follows; or mean and covariance of the
    queries of every layer."""
    score = plan.keep.score
    if score is not None and score.queries is not None:
        layers = sum(plan.keep.pattern(layer).held for layer in shape.contexts)
        return SCORE * layers * shape.q_heads * shape.head_dim * (1 + shape.head_dim)
    told = score is not None and score.source == "logits"
    return SCORE * tokens + shape.hidden * shape.element_bytes if told else 0
