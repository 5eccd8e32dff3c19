"""Gates: the layers at whose entrance tokens may stop, told as data, and all that follows from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal


@dataclass(frozen=True)
class Projection:
    """Units that a layer gets from the hidden states with which rows entered an earlier one, past the layers between.

    teachers: layers whose key and value projections are averaged; norm: the layer whose input norm comes before them.
    holder: the layer that keeps the units, for several that share them. all_rows: rows that go on have no other units;
    otherwise they make their own, as usual.
    """

    teachers: tuple[int, ...]
    norm: int
    holder: int
    all_rows: bool


@dataclass(frozen=True)
class Gate:
    """A layer at whose entrance tokens may stop. The runtime goes by these facts, and asks `choose` who goes on.

    layer: what stops does not enter it, nor any above.
    rank_by: layers, ascending, in which it is wanted how much the current token attends to each other: see
        `Entrance.signals`. Decode steps ask the last of them alone.
    voters: of a prompt, how many of its last tokens' attention that is; peaks: whether of every query head it is the
        most that any of them pays, and not their mean.
    waits: rows of a prompt gather here, as hidden states, until it is complete; nobody is chosen before.
    decode: whether decode steps choose here, too; otherwise all their rows go on.
    stopped: what becomes of a token that stops. "lost": it has no unit above; "evicted": nor below, from where its
        units go, too; "parked": its hidden state is kept, and a decode step that chooses it computes it from here on.
    newest: last tokens of a prompt that go on in any case.
    revived_see: which units of earlier steps a token sees that has been parked: of "earlier" positions, or "all" (but
        in windowed layers).
    fills: layers above that get units of what stops, and how; the step goes on seeing all tokens in them.
    self_only: in the layers above a row of the decode phase sees what they hold and itself, and leaves no unit.
    """

    layer: int
    rank_by: tuple[int, ...] = ()
    voters: int = 1
    peaks: bool = False
    waits: bool = False
    decode: bool = False
    stopped: Literal["lost", "evicted", "parked"] = "lost"
    newest: int = 1
    revived_see: Literal["earlier", "all"] = "earlier"
    fills: Mapping[int, Projection] = field(default_factory=dict)
    self_only: bool = False

    def asks(self, decode: bool) -> tuple[int, ...]:
        """The layers by which tokens are ranked in a phase."""
        return self.rank_by[-1:] if decode else self.rank_by


@dataclass(frozen=True)
class Gates:
    """The gates of a policy on a model with so many `layers`, from the lowest to the highest."""

    each: tuple[Gate, ...]
    layers: int

    @cached_property
    def at(self) -> dict[int, Gate]:
        """By layer."""
        return {gate.layer: gate for gate in self.each}

    @cached_property
    def first(self) -> int:
        """The layer from which on tokens are missing; the number of layers where all reach the last."""
        return min(self.at, default=self.layers)

    @cached_property
    def gathers(self) -> int:
        """The layer from which on the tokens of a prompt come all at once, at its end; the number of layers: none."""
        return min((gate.layer for gate in self.each if gate.waits), default=self.layers)

    @cached_property
    def ranks(self) -> bool:
        """Whether tokens are chosen by the attention of a prompt's last one."""
        return any(gate.rank_by for gate in self.each)

    @cached_property
    def voters(self) -> int:
        """Last tokens of a prompt by whose attention others are chosen; 0: by nobody's."""
        return max((gate.voters for gate in self.each if gate.rank_by), default=0)

    @cached_property
    def peaks(self) -> bool:
        """Whether that is the most that any of them pays."""
        return any(gate.peaks for gate in self.each)

    @cached_property
    def polls(self) -> bool:
        """Whether votes of a prompt's last tokens are held, by query head, until all of them are there."""
        return self.voters > 1

    @cached_property
    def newest(self) -> int:
        """Last tokens of a prompt that go through all layers in any case."""
        return min((gate.newest for gate in self.each), default=0)

    @cached_property
    def revives(self) -> bool:
        """Whether tokens that have stopped may go on in a later step."""
        return any(gate.stopped == "parked" for gate in self.each)

    @cached_property
    def relaxed(self) -> bool:
        """Whether revived tokens see units of earlier steps at later positions."""
        return any(gate.revived_see == "all" for gate in self.each)

    @cached_property
    def forgets(self) -> int:
        """The layer below which tokens that stop are evicted; 0: nowhere."""
        return max((gate.layer for gate in self.each if gate.stopped == "evicted"), default=0)

    @cached_property
    def all_at_once(self) -> int:
        """The layer from which on the tokens of a prompt come all at once and all stay."""
        return max(self.gathers, self.forgets)

    @cached_property
    def signals(self) -> dict[bool, frozenset[int]]:
        """The layers in which the attention of the current token is wanted: in prefill (False), in decode (True)."""
        return {
            decode: frozenset(layer for gate in self.each if gate.decode or not decode for layer in gate.asks(decode))
            for decode in (False, True)
        }

    @cached_property
    def in_decode(self) -> tuple[int, ...]:
        """The layers at which rows of a decode step have to halt: they are chosen among, or leave units above."""
        return tuple(
            gate.layer for gate in self.each if gate.decode or any(fill.all_rows for fill in gate.fills.values())
        )

    @cached_property
    def fills(self) -> dict[int, Projection]:
        """Of all gates."""
        return {layer: fill for gate in self.each for layer, fill in gate.fills.items()}

    @cached_property
    def self_only(self) -> frozenset[int]:
        """The layers in which a row of the decode phase leaves no unit."""
        return frozenset(layer for gate in self.each if gate.self_only for layer in range(gate.layer, self.layers))
