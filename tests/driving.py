"""Sequences driven step by step, below sessions and the engine: what tests look at between two steps."""

import torch

from winnow.runtime.forward import finish, logits_of, walk

__all__ = ["advance", "decode", "logits_of", "prefill"]


@torch.inference_mode()
def advance(decoder, batch, *, decode):
    """Feed each sequence its next tokens, (state, token ids) each, across boundaries too; returns for each the hidden
    states of the rows that reached the end of the last layer. decode: whether they are decode-phase, all or each."""
    phases = [decode] * len(batch) if isinstance(decode, bool) else decode
    hidden, rest = [[] for _ in batch], [tokens for _, tokens in batch]
    while going := [index for index, tokens in enumerate(rest) if tokens]:
        pieces = []
        for index in going:
            state = batch[index][0]
            end = state.boundary()
            count = len(rest[index]) if end is None else end - state.position
            pieces.append((state, rest[index][:count]))
            rest[index] = rest[index][count:]
        rows = finish(decoder, walk(decoder, pieces, [phases[index] for index in going]))
        for index, each in zip(going, rows, strict=True):
            hidden[index].append(each)
    return [torch.cat(each) for each in hidden]


def prefill(decoder, state, ids, chunk):
    """Process a prompt, `chunk` tokens a step; returns the logits after it, [vocab] float32."""
    done = 0
    while done < len(ids):
        end = state.boundary()
        piece = ids[done : done + (chunk if end is None else min(chunk, end - state.position))]
        [hidden] = advance(decoder, [(state, piece)], decode=False)
        done += len(piece)
    return logits_of(decoder, hidden[-1:])[0]


def decode(decoder, batch):
    """One decode step of every (state, token id); returns logits [len(batch), vocab] float32."""
    hidden = advance(decoder, [(state, [token]) for state, token in batch], decode=True)
    return logits_of(decoder, torch.cat([rows[-1:] for rows in hidden]))
