"""The rows of one sequence in a step."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from winnow.runtime.sequence import Sequence


@dataclass
class Segment:
    """The rows of one sequence in a step: `[start, stop)` of the flat batch, at `positions` [rows], from `first` on.

    known: tokens of the sequence so far, these rows included. consecutive: whether the positions rise by one; not so
    where a compute policy has let rows stop. late: how many rows, the first ones, are of tokens that were skipped
    before. seen: [known] bool, the positions this step still sees; None: all. whole: whether it sees everything that
    the layers hold to which it comes. signals: by layer, [known] each, see `Entrance`. revived: tokens so far in this
    step.
    """

    sequence: Sequence
    start: int
    stop: int
    first: int
    positions: Tensor
    decode: bool
    known: int
    consecutive: bool = True
    late: int = 0
    seen: Tensor | None = None
    whole: bool = True
    signals: dict[int, Tensor] = field(default_factory=dict)
    revived: int = 0

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def ranks(self) -> bool:
        """Whether the rows attend to all that is there, so that tokens can be ranked by it: not in a fast step."""
        return not self.decode or self.sequence.reader.slow is not False

    @property
    def ranked_in(self) -> Collection[int]:
        """The layers by its last rows' attention in which its policy chooses; of a prompt, by that of its last ones."""
        due = self.decode or self.known > self.sequence.prompt - self.sequence.gates.voters
        return self.sequence.gates.signals[self.decode] if due and self.ranks else ()

    @property
    def ranks_alone(self) -> bool:
        """Whether it is by the mean attention of its last row that the policy chooses: not of several, nor the most."""
        return self.decode or not self.sequence.gates.polls

    @property
    def gates(self) -> Collection[int]:
        """The layers at which its rows have to halt."""
        return self.sequence.gates.in_decode if self.decode else self.sequence.gates.at

    @property
    def plain(self) -> bool:
        """Whether a row sees all that was there before and, of the rows, itself and those ahead of it, and nobody is
        told how: one of a decode step what its reader selects of that."""
        if self.decode and self.rows == 1:
            return self.whole
        if self.sequence.repeat is not None:
            return False
        ascends = self.sequence.gates.relaxed if self.decode else self.consecutive
        chooses = self.sequence.reader.selects or (self.sequence.chooser is not None and not self.decode)
        return self.whole and ascends and self.rows > 0 and not chooses

    def visible(self, layer: int) -> Tensor:
        """[tokens] positions, ascending, that the step still sees on entering a layer: in a decode step none that wait
        at a gate below which lets nobody through."""
        if self.seen is None:
            seen = torch.ones(self.known, dtype=torch.bool, device=self.positions.device)
        else:
            seen = self.seen.clone()
        for gate in self.sequence.gates.each if self.decode else ():
            if gate.layer < layer and not gate.decode:
                seen[self.sequence.aside[gate.layer].live] = False
        return seen.nonzero().flatten()

    def before(self, position: int) -> int:
        """How many of the rows stand before `position`."""
        return max(0, position - self.first) if self.consecutive else int((self.positions < position).sum())

    @property
    def together(self) -> "list[Segment]":
        """Its rows, in parts that read the same; of those of a prompt each has seen no more than its own tokens."""
        whole = 0 if self.decode else self.sequence.plan.read.whole
        if not whole:
            return [self]
        parts = []
        for start in range(self.start, self.stop, whole):
            part = self.part(start, min(start + whole, self.stop))
            stop = start + part.rows
            parts.append(replace(part, start=start, stop=stop, known=part.first + part.rows))
        return parts

    def part(self, start: int, stop: int) -> "Segment":
        """The rows that lie in `[start, stop)` of the flat batch, counted from its start."""
        begin, end = max(start, self.start), min(stop, self.stop)
        positions = self.positions[begin - self.start : end - self.start]
        first = self.first + begin - self.start if self.consecutive or begin == self.start else int(positions[0])
        consecutive = self.consecutive or end - begin == 1
        late = max(0, min(self.late - (begin - self.start), end - begin))
        return replace(
            self, start=begin - start, stop=end - start, first=first, positions=positions, consecutive=consecutive,
            late=late,
        )  # fmt: skip
