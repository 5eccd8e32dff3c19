"""Prefill in chunks and decode steps: the two ways rows reach a step."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from winnow.plan import Plan
from winnow.runtime.decoder import Decoder
from winnow.runtime.observer import Observer
from winnow.runtime.segment import Segment
from winnow.runtime.sequence import Sequence as State
from winnow.runtime.sequence import new_sequence
from winnow.runtime.step import Step
from winnow.runtime.surprisal import surprisal_of


@torch.inference_mode()
def advance(
    decoder: Decoder, batch: Sequence[tuple[State, list[int]]], *, decode: bool | Sequence[bool]
) -> list[Tensor]:
    """Feed each sequence its next tokens; one row for a decode step, more for a chunk of a prompt.

    batch: (state, token ids) pairs, each state once. decode: whether the rows are decode-phase, for all or for each.
    Returns for each the hidden states [rows, hidden] of the rows that reached the end of the last layer, the last
    token's last; none where the compute policy waits for the rest of the prompt. States are one step further; more
    than one where a keep policy compresses the caches in the middle of the tokens.
    """
    phases = [decode] * len(batch) if isinstance(decode, bool) else decode
    hidden: list[list[Tensor]] = [[] for _ in batch]
    rest = [tokens for _, tokens in batch]
    while going := [index for index, tokens in enumerate(rest) if tokens]:
        pieces = []
        for index in going:
            state = batch[index][0]
            end = state.boundary()
            count = len(rest[index]) if end is None else end - state.position
            pieces.append((state, rest[index][:count]))
            rest[index] = rest[index][count:]
        rows = _step(decoder, pieces, [phases[index] for index in going])
        for index, each in zip(going, rows, strict=True):
            hidden[index].append(each)
    return [each[0] if len(each) == 1 else torch.cat(each) for each in hidden]


def _step(decoder: Decoder, batch: list[tuple[State, list[int]]], phases: list[bool]) -> list[Tensor]:
    """One step of all sequences in `batch`, which does not go across a boundary of any; returns as `advance`."""
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
            state.reader.begin(tokens[-1])
        segments.append(Segment(state, start, stop, state.position, everywhere[start:stop], phase, known))
        start = stop
    with decoder.driving():
        hidden = Step(decoder, segments).run(ids)
    for (state, tokens), phase, rows in zip(batch, phases, hidden, strict=True):
        _count_full(decoder, state, len(tokens), phase)
        state.advance(decoder, tokens, rows)
        if phase:
            fast = state.read_less if state.reader.slow is None else not state.reader.slow
            state.stats.fast_steps += fast
            state.stats.slow_steps += not fast
        state.read_less = False
    return hidden


@torch.inference_mode()
def logits_of(decoder: Decoder, hidden: Tensor) -> Tensor:
    """[rows, hidden] -> [rows, vocab] float32."""
    with decoder.driving():
        return decoder.logits(hidden)


def prefill(
    decoder: Decoder, state: State, ids: list[int], chunk: int, progress: Callable[[int], None] = lambda tokens: None
) -> Tensor:
    """Process a prompt, `chunk` tokens a step; returns the logits after it, [vocab] float32. progress: tokens done."""
    done = 0
    while done < len(ids):
        end = state.boundary()  # steps begin anew there, rather than leave slivers on both sides
        piece = ids[done : done + (chunk if end is None else min(chunk, end - state.position))]
        [hidden] = advance(decoder, [(state, piece)], decode=False)
        done += len(piece)
        progress(len(piece))
    return logits_of(decoder, hidden[-1:])[0]


def decode(decoder: Decoder, batch: Sequence[tuple[State, int]]) -> Tensor:
    """One decode step of every sequence in `batch` (state, token id); returns logits [len(batch), vocab] float32."""
    hidden = advance(decoder, [(state, [token]) for state, token in batch], decode=True)
    return logits_of(decoder, torch.cat([rows[-1:] for rows in hidden]))


def forward_pass(decoder: Decoder, ids: list[int], chunk: int, observer: Observer | None = None) -> Iterator[Tensor]:
    """A text under full attention, `chunk` tokens a step; yields [tokens of the step, hidden] after the last layer."""
    state = new_sequence(decoder, Plan(), len(ids), len(ids), chunk)
    state.observer = observer
    for start in range(0, len(ids), chunk):
        [hidden] = advance(decoder, [(state, ids[start : start + chunk])], decode=False)
        yield hidden


def surprisals(decoder: Decoder, ids: list[int], chunk: int) -> Iterator[Tensor]:
    """-ln P of every token but the first under full attention, [tokens] float32 for every `chunk` tokens fed."""
    following = [torch.tensor(ids[at : at + chunk], device=decoder.device) for at in range(1, len(ids), chunk)]
    for hidden, tokens in zip(forward_pass(decoder, ids[:-1], chunk), following, strict=True):
        yield surprisal_of(decoder, hidden, tokens)


def _count_full(decoder: Decoder, state: State, rows: int, phase: bool) -> None:
    """Count what full attention would have computed and read for these rows."""
    shape = decoder.shape
    state.stats.rows_full += rows * shape.layers
    if phase:
        seen = state.omitted + state.position + rows
        state.stats.units_full += shape.kv_heads * sum(seen if w is None else min(seen, w) for w in shape.windows)
