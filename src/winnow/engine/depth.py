"""How deep a model finds what was said before: below that depth no layer can say which tokens of a prompt matter.

Tokens drawn at random, the first of which come again at the end, as Olsson et al., In-context Learning and Induction
Heads, arXiv:2209.11895, have it: a layer finds where one of its heads looks, in the repetition, to where its tokens
stood first. That takes no tokenizer and no text, and a pass through the layers up to the first that does.
"""

from dataclasses import replace

import torch

from winnow.engine.whole import look_at
from winnow.policies.prefill.base import Piece
from winnow.runtime.decoder import Decoder

TOKENS, AGAIN = 512, 64  # in all, and how many of them are the repetition
NEAR = range(-4, 9)  # from where a token stood first: words run on, and heads look to what follows as much
# Of the attention of the best head, as the mean over the repetition: two toys and a pre-trained model pay 0.39 or more
# in the first layer that finds what questions ask for, and at most 0.1 in any below (docs/diagnose.md).
FINDS = 0.25


def measure_depth(decoder: Decoder) -> None:
    """Have `finds` in the decoder's shape, measured once for its weights as they are.

    It stays None where the model has not `TOKENS` positions, where no layer but the last finds anything, and in a model
    all of whose layers have windows.
    """
    decoder.refresh()
    if "finds" not in decoder.derived:
        decoder.derived["finds"] = _first_that_finds(decoder)
    decoder.shape = replace(decoder.shape, finds=decoder.derived["finds"])


def _first_that_finds(decoder: Decoder) -> int | None:
    shape, found = decoder.shape, list[int]()
    if shape.max_positions < TOKENS or None not in shape.windows:
        return None

    def look(piece: Piece) -> bool:
        if _looked_back(piece) >= FINDS and piece.layer < shape.layers - 1:
            found.append(piece.layer)
        return bool(found)

    look_at(decoder, _repeating(shape.vocab, getattr(decoder.config, "bos_token_id", None)), look)
    return found[0] if found else None


def _repeating(vocab: int, start: object) -> list[int]:
    """`TOKENS` random tokens, the last `AGAIN` of which are those after the first; start: a model's before any text."""
    ids: list[int] = torch.randint(vocab, (TOKENS - AGAIN,), generator=torch.Generator().manual_seed(0)).tolist()
    if isinstance(start, int):
        ids[0] = start
    return ids + ids[1 : 1 + AGAIN]


def _looked_back(piece: Piece) -> float:
    """How much attention the repetition pays to where it stood first, of the best head: the mean over its tokens."""
    units = torch.arange(piece.units, device=piece.keys.device)
    behind = units - 1 - units[:AGAIN, None]  # [rows, units], from where a row's token stood first
    near = (behind >= NEAR.start) & (behind < NEAR.stop)
    return float((piece.attention(AGAIN) * near).sum(-1).mean(-1).max())
