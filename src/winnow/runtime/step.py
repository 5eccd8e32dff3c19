"""One step: a flat batch of rows of many sequences goes through the layers once.

Rows of a sequence stand side by side and carry their positions; there is no padding. Linear layers see one big batch,
attention works per segment. Between two layers a compute policy may let rows of a segment stop, set aside or for good,
and let others go on that an earlier step set aside there.
"""

from collections.abc import Generator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from winnow.policies.compute.base import Entrance
from winnow.policies.compute.gates import Gate
from winnow.runtime.block import Block
from winnow.runtime.decoder import Decoder
from winnow.runtime.projection import leave_units
from winnow.runtime.segment import Segment


class Step:
    """One pass of `segments` over all layers."""

    def __init__(self, decoder: Decoder, segments: list[Segment]) -> None:
        self.decoder = decoder
        self.segments = segments
        rows = segments[-1].stop
        self.most = max(rows, *(s.sequence.chunk for s in segments))  # rows that go through a layer together
        self._made: list[Block] | None = None

    @property
    def blocks(self) -> list[Block]:
        """The rows, in blocks that go through a layer together."""
        if self._made is None:
            self._made = self._blocks()
        return self._made

    @property
    def _plain(self) -> bool:
        """Whether layers may be taken several at once."""
        return all(segment.plain and segment.sequence.watcher is None for segment in self.segments)

    def _next_halt(self, layer: int) -> int:
        """The next layer above at which rows have to halt, or the number of layers."""
        if any(layer >= s.sequence.gates.forgets and s.sequence.settles_at(s.known) for s in self.segments):
            return layer + 1
        return min((at for s in self.segments for at in s.gates if at > layer), default=self.decoder.shape.layers)

    def walk(self, ids: Tensor) -> Generator[int, None, list[Tensor]]:
        """[rows] token ids -> for each segment [rows, hidden] after the last layer, of the rows that reached it.

        Yields after every block of every layer how many rows it had.
        """
        hidden, layer, layers = self.decoder.embed(ids)[0], 0, self.decoder.shape.layers
        while layer < layers:
            hidden = self._enter(layer, hidden)
            if not len(hidden):
                break
            taken = layer
            if self._plain:
                hidden, taken = self.decoder.program.run(self.segments, hidden, layer, self._next_halt(layer))
            if taken == layer:
                self._tell(layer, hidden)
                done = []
                for block in self.blocks:
                    block.layer = layer
                    done.append(self._through(block, hidden[block.rows]))
                    yield len(done[-1])
                hidden = done[0] if len(done) == 1 else torch.cat(done)
                taken += 1
            else:
                yield len(hidden) * (taken - layer)
            for segment in self.segments:
                segment.sequence.stats.rows_computed += segment.rows * (taken - layer)
                segment.sequence.stats.revived_rows += segment.late * (taken - layer)
                if layer >= segment.sequence.gates.forgets:
                    segment.sequence.quantize_done(self.decoder, range(layer, taken), segment.known)
            layer = taken
        self._tell(self.decoder.shape.layers, hidden)
        return [hidden[segment.start : segment.stop] for segment in self.segments]

    def _through(self, block: Block, hidden: Tensor) -> Tensor:
        """A block's rows [rows, hidden] through its layer; where they are few, all but its attention in the kernel."""
        layer, program = block.layer, self.decoder.program
        block.entering = hidden
        if program.takes(layer, len(hidden)):
            return program.around(layer, hidden, partial(block.attend, self.decoder.layers[layer].self_attn))
        return self.decoder.layer(layer, hidden[None], block)[0]

    def _tell(self, layer: int, hidden: Tensor) -> None:
        for segment in self.segments:
            sequence, rows = segment.sequence, hidden[segment.start : segment.stop]
            if (watcher := sequence.watcher) is not None:
                watcher.entered(layer, segment, rows)
            if sequence.plan.read.by_rows and layer < self.decoder.shape.layers:
                sequence.reader.entered(layer, segment.positions, rows, decode=segment.decode)

    def _blocks(self) -> list[Block]:
        rows = self.segments[-1].stop
        return [
            Block(self.decoder, self.segments, start, min(start + self.most, rows))
            for start in range(0, rows, self.most)
        ]

    def _enter(self, layer: int, hidden: Tensor) -> Tensor:
        """Ask the compute policies that choose here who goes on; returns the hidden states of those that do."""
        if not any(layer in s.sequence.gates.at for s in self.segments):
            return hidden
        chosen = [self._choose(layer, s, hidden[s.start : s.stop]) for s in self.segments]
        if all(after is before for (after, _), before in zip(chosen, self.segments, strict=True)):
            return hidden
        start = 0
        for index, (segment, rows) in enumerate(chosen):
            self.segments[index] = replace(segment, start=start, stop=start + len(rows))
            start += len(rows)
        self._made = None
        return torch.cat([rows for _, rows in chosen])

    def _choose(self, layer: int, segment: Segment, rows: Tensor) -> tuple[Segment, Tensor]:
        """The segment and its hidden states after the choice of its policy; start and stop are left as they were.

        Where all its rows go on and no others do, it is the same object.
        """
        sequence, gate = segment.sequence, segment.sequence.gates.at.get(layer)
        if gate is None:
            return segment, rows
        if segment.decode and not (gate.decode and segment.ranks):
            leave_units(self.decoder, gate, segment, rows)
            return segment, rows
        waits, visible = gate.waits and segment.known < sequence.prompt, segment.visible(layer)
        going = segment.positions[:0] if waits else self._going(gate, segment, visible)
        if going is None:
            leave_units(self.decoder, gate, segment, rows)
            return segment, rows
        aside, seen = sequence.aside[layer], _among(going, segment.known)
        there = len(visible) - aside.count  # of what the step sees so far, the tokens that have been here
        stays = seen[segment.positions]
        if sequence.planted:
            stays &= segment.positions > 0
        leave_units(self.decoder, gate, segment, rows, ~stays)
        wanted = seen[aside.live]
        # In a decode step what is held grows from here on, unless memory goes back.
        if not segment.decode or aside.gives_back(int(wanted.sum())):
            sequence.note()
        returned, returned_at = aside.take(wanted)
        if waits or gate.stopped == "parked":
            # While they wait, all that will wait is known; what stops later is not.
            aside.put(rows[~stays], segment.positions[~stays], sequence.prompt if waits else 0)
        else:
            aside.clear()
        if not segment.decode:
            sequence.note()
        if gate.stopped == "evicted" and not waits:
            sequence.forget(seen, below=layer)
            if layer == sequence.gates.forgets:
                sequence.quantize_done(self.decoder, range(layer), segment.known)
        rows, positions = rows[stays], segment.positions[stays]
        if len(returned):
            positions, order = torch.cat((positions, returned_at)).sort()
            rows = torch.cat((rows, returned))[order]
        revived = len(returned) if segment.decode else 0
        whole = segment.whole and len(going) - len(returned) == there
        return self._narrowed(segment, positions, segment.seen if gate.fills else seen, whole, revived), rows

    def _going(self, gate: Gate, segment: Segment, visible: Tensor) -> Tensor | None:
        """Of the visible positions those that go on through a gate; None: all rows, and nothing that an earlier step
        left."""
        sequence, told, aside = segment.sequence, segment.signals, segment.sequence.aside[gate.layer]
        entrance = Entrance(
            shape=sequence.shape,
            prompt=sequence.prompt,
            known=segment.known,
            decode=segment.decode,
            visible=visible,
            aside=_among(aside.live, segment.known)[visible],
            deep=sequence.going,
            signals=[told[layer][visible] for layer in gate.asks(segment.decode) if layer in told],
            revived=segment.revived,
        )
        index = sequence.plan.compute.choose(gate, entrance)
        if index is None:
            return visible if aside.count else None
        return visible[index]

    def _narrowed(self, segment: Segment, positions: Tensor, seen: Tensor | None, whole: bool, revived: int) -> Segment:
        first, last = (int(positions[0]), int(positions[-1])) if len(positions) else (segment.first, segment.first)
        return replace(
            segment,
            first=first,
            positions=positions,
            consecutive=last - first + 1 == len(positions),
            late=int((positions < segment.sequence.position).sum()) if segment.decode else 0,
            seen=seen,
            whole=whole,
            revived=segment.revived + revived,
        )


def _among(positions: Tensor, known: int) -> Tensor:
    """[known] bool: which positions are among `positions`."""
    mask = torch.zeros(known, dtype=torch.bool, device=positions.device)
    mask[positions] = True
    return mask
