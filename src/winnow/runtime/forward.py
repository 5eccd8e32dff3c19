"""A pass through the layers: how rows reach a step, and what a step leaves behind."""

from collections.abc import Generator, Sequence
from typing import cast

import torch
from torch import Tensor

from winnow.runtime.decoder import Decoder
from winnow.runtime.segment import Segment
from winnow.runtime.sequence import Sequence as State
from winnow.runtime.step import Step


def walk(
    decoder: Decoder, batch: Sequence[tuple[State, list[int]]], phases: Sequence[bool]
) -> Generator[int, None, list[Tensor]]:
    """One pass of some sequences through the layers, each fed its next tokens, that can be halted between two layers.

    batch: (state, token ids), each state once, none across a boundary at which its caches are compressed; one row for a
    decode step, more for a chunk of a prompt or of what is read of it once more (`Sequence.repeating`). phases: whether
    the rows of each are decode-phase.
    Yields how many rows have just gone through a layer. Returns for each the hidden states [rows, hidden] of the rows
    that reached the end of the last layer, the last token's last; none where the compute policy waits for the rest of
    the prompt. The states are one step further then, and of no use if the walk is not finished.
    """
    decoder.locate()
    ids = torch.tensor([token for _, tokens in batch for token in tokens], device=decoder.device)
    everywhere = torch.tensor(
        [position for state, tokens in batch for position in range(state.position, state.position + len(tokens))],
        device=decoder.device,
    )
    segments, start = [], 0
    for (state, tokens), phase in zip(batch, phases, strict=True):
        stop = start + len(tokens)
        known = state.position + len(tokens)
        if phase:
            state.reader.begin(tokens[-1], known)
        segments.append(Segment(state, start, stop, state.position, everywhere[start:stop], phase, known))
        start = stop
    hidden = yield from Step(decoder, segments).walk(ids)
    for (state, tokens), phase, rows in zip(batch, phases, hidden, strict=True):
        if state.repeat is None:
            _count_full(decoder, state, len(tokens), phase)
        state.advance(decoder, tokens, rows)
        if phase:
            fast = state.read_less if state.reader.slow is None else not state.reader.slow
            state.stats.fast_steps += fast
            state.stats.slow_steps += not fast
        state.read_less = False
    return hidden


def finish(decoder: Decoder, steps: Generator[int, None, list[Tensor]]) -> list[Tensor]:
    """The result of `walk`, without a halt."""
    with decoder.inferring():
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast(list[Tensor], end.value)


def logits_of(decoder: Decoder, hidden: Tensor) -> Tensor:
    """[rows, hidden] -> [rows, vocab] float32."""
    with decoder.inferring():
        return decoder.logits(hidden)


def _count_full(decoder: Decoder, state: State, rows: int, phase: bool) -> None:
    """Count what full attention would have computed and read for these rows."""
    shape = decoder.shape
    state.stats.rows_full += rows * shape.layers
    if phase:
        seen = state.omitted + state.position + rows
        state.stats.units_full += shape.kv_heads * sum(seen if w is None else min(seen, w) for w in shape.windows)
