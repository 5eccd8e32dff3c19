"""What a sequence takes of a machine's memory under a plan: closed formulas, of which what is held admits requests.

held      units and what policies hold beside them: `most_held`, which no request exceeds
working   what a step allocates and gives back: activations of a chunk of the prompt, and what moves meanwhile

Working memory follows what the runtime allocates in a layer. It is an estimate from above, for layers with one MLP, and
tests/engine/test_footprint.py holds it against resident memory.
"""

from collections.abc import Callable
from dataclasses import dataclass

from winnow.engine.bound import most_held, most_units
from winnow.errors import InputError
from winnow.plan import FAR, Plan
from winnow.policies.base import ModelShape
from winnow.policies.compute.base import Deep
from winnow.runtime.outputs import UNITS
from winnow.runtime.sequence import HEADROOM
from winnow.runtime.surprisal import LOGIT_ROWS
from winnow.runtime.view import VOTING_ROWS

FLOAT = 4  # bytes of a float32
POSITION = 8
CHOICE = 40  # bytes of each unit among which one choice is made: scores, twice, and sorted with their places; counts
KEPT = 2  # malloc holds on to what activations have left: resident memory rises by 1.9 times what is in use at once


@dataclass(frozen=True)
class Footprint:
    """Bytes: of the most units held, of the most that policies hold beside them, and of a step's working memory."""

    units: int
    beside: int
    working: int

    @property
    def total(self) -> int:
        return self.units + self.beside + self.working


@dataclass(frozen=True)
class Footprints:
    """What texts of any length take under a plan: `new` tokens after a prompt, of which `chunk` go in a step.

    expanded: bytes of weights that are floats, or arranged anew, while they are multiplied. deep: what the compute
    policy says of a prompt of so many tokens.
    """

    plan: Plan
    shape: ModelShape
    new: int
    chunk: int
    expanded: int
    deep: Callable[[int], Deep]

    def of(self, prompt: int) -> Footprint:
        """For a prompt of so many tokens; grows with them."""
        fed = self.new - 1  # the last is never fed
        units, beside = most_held(self.plan, self.shape, prompt, fed, self.chunk, self.deep(prompt))
        working = self._activations(prompt) + self._moving(prompt) + self._asked(prompt) + self.expanded
        return Footprint(units, beside, working)

    def longest(self, most: int) -> int | None:
        """The longest prompt that the model's positions and `most` bytes leave room for; 0: none, None: any."""
        low, high = 0, FAR if self.room is None else self.room
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._fits(middle, most) else (low, middle - 1)
        return None if low == FAR else low

    def _fits(self, prompt: int, most: int) -> bool:
        try:
            return self.of(prompt).total <= most
        except InputError:  # it is shorter than the anchors that the plan names
            return False

    @property
    def room(self) -> int | None:
        """The longest prompt that the model's positions leave room for; None: they set no limit."""
        room = self.plan.room(self.shape, self.new)
        return None if room is None else max(0, room)

    @property
    def _logits(self) -> int:
        """Bytes of a row of logits: as the head makes them, and as float32, twice."""
        return self.shape.vocab * (self.shape.element_bytes + 2 * FLOAT)

    def _activations(self, prompt: int) -> int:
        """Of the rows that go through a layer together.

        Beside a row's hidden states (on the way in, the residual, the norm of it): three floats of each value while it
        is normed; or queries and keys unrotated, rotated, and in between; or gate and up, which may come as one, the
        activation and the product.
        """
        shape = self.shape
        queries, keys = (heads * shape.head_dim for heads in (shape.q_heads, shape.kv_heads))
        normed = 3 * FLOAT * shape.hidden
        widest = max(normed, shape.element_bytes * max(4 * queries + 3 * keys, 4 * shape.mlp))
        row = 3 * shape.hidden * shape.element_bytes + widest
        return KEPT * min(self.plan.step_rows(self.chunk), prompt) * row + self._logits

    def _moving(self, prompt: int) -> int:
        """Of what lies twice while it moves: a layer's units where slabs grow or are compacted, what a reader holds
        while it is made anew, and rows that have waited for the end of the prompt. And the index of positions, that
        every layer has."""
        shape, gates, most = self.shape, self.plan.gates(self.shape), self._most(prompt)
        moves = not self.plan.is_full or self.new > HEADROOM
        waited = prompt if gates.gathers < shape.layers else 0
        return (
            POSITION * sum(most)
            + moves * max(most) * shape.kv_heads * shape.unit_bytes
            + self.plan.read.bound(shape, prompt, self.new - 1)
            + 4 * waited * shape.hidden * shape.element_bytes
        )

    def _asked(self, prompt: int) -> int:
        """Of what policies are told: how rows attend, over all query heads, or how surprising tokens are."""
        score, shape = self.plan.keep.score, self.shape
        source = None if score is None else score.source
        told = source == "logits" or not self.plan.prompt.identity  # a prompt is shortened before it is computed
        voters = min(self.plan.gates(shape).voters, VOTING_ROWS)
        rows = max(voters, int(not self.plan.read.identity), self.plan.prefill.looks, min(prompt, self.plan.read.looks))
        if source in ("attention", "repeats") or self.plan.read.whole:
            rows = max(rows, VOTING_ROWS)
        weights = 4 * FLOAT * rows * shape.q_heads * self._longest(prompt)
        # All units of a layer as floats, and as much again of what is made of them.
        copies = 4 if source == "units" or self.plan.keep.keeps_sums else 2 * (rows > 0)
        keys = copies * FLOAT * shape.kv_heads * shape.head_dim * self._longest(prompt)
        # Scores of all units at once, and what is made of them to choose.
        choice = CHOICE * sum(self._most(prompt)) * shape.kv_heads if source == "repeats" else 0
        return weights + keys + choice + self._projected(prompt) + told * LOGIT_ROWS * self._logits

    def _projected(self, prompt: int) -> int:
        """Of what units add to a layer's output: its projection, and what it makes of some units; twice."""
        score, shape = self.plan.keep.score, self.shape
        if score is None or not score.outputs:
            return 0
        rows = shape.q_heads * shape.head_dim + min(UNITS, self._longest(prompt))
        return 2 * FLOAT * shape.hidden * rows + FLOAT * shape.kv_heads * self._longest(prompt)

    def _longest(self, prompt: int) -> int:
        """The most units of any head: copies have as many of each."""
        keep, shape = self.plan.keep, self.shape
        if not keep.ragged:
            return max(self._most(prompt))
        each = (keep.longest(prompt, self.new - 1, layer, shape.kv_heads) for layer in shape.contexts)
        return min(max(units or 0 for units in each), prompt + max(self.new - 1, keep.repeated(prompt)))

    def _most(self, prompt: int) -> list[int]:
        return most_units(self.plan, self.shape, prompt, self.new - 1, self.chunk, self.deep(prompt))
