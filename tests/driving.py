"""Sequences driven step by step, below sessions and the engine: what tests look at between two steps.

Of a prompt whose rows' reading is chosen for many at once, tokens wait until these are all there.
"""

import torch

from winnow.runtime.forward import finish, logits_of, walk

__all__ = ["advance", "decode", "logits_of", "prefill"]


@torch.inference_mode()
def advance(decoder, batch, *, decode):
    """Feed each sequence its next tokens, (state, token ids) each, across boundaries too; returns for each the hidden
    states of the rows that reached the end of the last layer. decode: whether they are decode-phase, all or each."""
    phases = [decode] * len(batch) if isinstance(decode, bool) else decode
    hidden = [[torch.empty(0, decoder.shape.hidden, dtype=decoder.dtype, device=decoder.device)] for _ in batch]
    rest = [getattr(state, "waiting", []) + tokens for state, tokens in batch]
    _repeat(decoder, batch)
    while going := [index for index, (state, _) in enumerate(batch) if _due(state, rest[index], phases[index])]:
        pieces = []
        for index in going:
            state = batch[index][0]
            count = _due(state, rest[index], phases[index])
            pieces.append((state, rest[index][:count]))
            rest[index] = rest[index][count:]
        rows = finish(decoder, walk(decoder, pieces, [phases[index] for index in going]))
        for index, each in zip(going, rows, strict=True):
            hidden[index].append(each)
        _repeat(decoder, batch)
    for (state, _), tokens in zip(batch, rest, strict=True):
        state.waiting = tokens
    return [torch.cat(each) for each in hidden]


def _repeat(decoder, batch):
    """Feed what prompts are read by once more, where that is due."""
    for state, _ in batch:
        while state.repeating:
            finish(decoder, walk(decoder, [(state, list(state.repeating[: state.chunk]))], [False]))


def _due(state, tokens, decode):
    """How many of the tokens that there are can go through the layers in one step."""
    if decode or state.position >= state.prompt:
        end = state.boundary()
        return len(tokens) if end is None else min(len(tokens), end - state.position)
    count = state.piece(len(tokens), state.prompt - state.position)
    return count if count <= len(tokens) else 0


def prefill(decoder, state, ids, chunk):
    """Process a prompt, `chunk` tokens a step; returns the logits after it, [vocab] float32."""
    done = 0
    while done < len(ids):
        piece = ids[done : done + state.piece(chunk, len(ids) - done)]
        [hidden] = advance(decoder, [(state, piece)], decode=False)
        done += len(piece)
    return logits_of(decoder, hidden[-1:])[0]


def decode(decoder, batch):
    """One decode step of every (state, token id); returns logits [len(batch), vocab] float32."""
    hidden = advance(decoder, [(state, [token]) for state, token in batch], decode=True)
    return logits_of(decoder, torch.cat([rows[-1:] for rows in hidden]))
