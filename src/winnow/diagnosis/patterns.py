"""Which pattern of MInference each head of a model needs: of a few, the one that holds most of its attention.

Source: Jiang et al., MInference 1.0, arXiv:2407.02490, section 3.2 and algorithm 1, and the authors' search: dense
attention over one text, and of each candidate the attention that falls on what it reads, the mean over queries.
"""

from collections.abc import Callable

import torch

from winnow.engine.whole import look_at
from winnow.errors import InputError
from winnow.plan import Plan
from winnow.policies.prefill.base import Piece
from winnow.policies.prefill.minference import MInference, Pattern
from winnow.runtime.head_patterns import HeadPatterns
from winnow.runtime.llm import LLM

FROM = 2500  # the first query that counts; in a text of less than twice as many tokens its second half does
SHARE = 8  # block_sparse reads one block in so many


def candidates(tokens: int) -> list[Pattern]:
    """What is tried, as in the authors' search."""
    sizes = ((30, 800), (100, 750), (500, 700), (3500, 100))
    blocks = max(1, tokens // MInference.block // SHARE)
    return [
        Pattern("a_shape", 100, 800),
        *(Pattern("vertical_slash", *each) for each in sizes),
        Pattern("block_sparse", blocks),
    ]


def search_patterns(
    llm: LLM, ids: list[int], tried: list[Pattern] | None = None, progress: Callable[[int], None] = lambda layers: None
) -> HeadPatterns:
    """Search on one text, all of it in one piece. tried: `candidates` if None. progress: called with 1 for each layer.

    Layers with a sliding window are not asked, and keep the first candidate. In a text of up to 3,500 tokens one of the
    authors' candidates reads everything. Memory grows with the square of the text.

    Raises InputError where the text has less than two blocks, or more tokens than the model has positions, and where
    every layer has a window.
    """
    if len(ids) < 2 * MInference.block:
        raise InputError(f"the text has {len(ids)} tokens; patterns are searched on at least {2 * MInference.block}")
    Plan().prepare(llm.services, ids)
    tried = tried or candidates(len(ids))
    shape, first = llm.decoder.shape, min(FROM, len(ids) // 2)
    best = [[(tried[0], 0.0)] * shape.q_heads for _ in range(shape.layers)]

    def search(piece: Piece) -> None:
        best[piece.layer] = _best(piece, tried, first)
        progress(1)

    look_at(llm.decoder, ids, search)
    layers = [[pattern for pattern, _ in heads] for heads in best]
    shares = [[round(share, 4) for _, share in heads] for heads in best]
    return HeadPatterns.of(llm.model, layers, shares, {"tokens": len(ids)})


def _best(piece: Piece, tried: list[Pattern], first: int) -> list[tuple[Pattern, float]]:
    """Per query head the candidate that holds most of the attention of the rows from `first` on, and how much."""
    policy, heads = MInference(chunk=MInference.block), len(piece.queries)
    cells = [policy.choose(piece, {piece.layer: [each] * heads}) for each in tried]
    held = torch.zeros(len(tried), heads, dtype=torch.float64)
    for block in range(first // policy.block, -(-piece.rows // policy.block)):
        start, stop = cells[0].bounds(block, piece.rows)
        rows = slice(max(start, first) - start, None)
        causal = torch.ones(stop - start, stop, dtype=torch.bool, device=piece.keys.device).tril(start)
        logits = piece.capped(piece.logits(piece.queries[:, start:stop], piece.keys[:, :stop]))
        weights = logits.masked_fill(~causal, float("-inf")).softmax(-1)[:, rows].sum(1)  # [q_heads, units]
        for at, each in enumerate(cells):
            held[at] += (weights * each.units(block, stop)).sum(-1).double().cpu()
    share, index = (held / (piece.rows - first)).max(0)
    return [(tried[at], value) for at, value in zip(index.tolist(), share.tolist(), strict=True)]
