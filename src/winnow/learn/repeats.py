"""What retaining heads learn from KVzip: the projections of a text's tokens, and what each of their units scores."""

from collections.abc import Sequence

import torch
from torch import Tensor

from winnow.cache.layer import LayerCache
from winnow.errors import InputError
from winnow.learn.labels import Labelled
from winnow.plan import Plan
from winnow.policies.keep.kvzip import KVzip
from winnow.runtime.heads import joined
from winnow.runtime.llm import LLM
from winnow.runtime.observer import Observer
from winnow.runtime.segment import Segment

LEAST = 8  # tokens of a text: there are sinks, and others
FLOOR = 1e-10  # of scores, of which the logarithm is learnt


def check_repeated(llm: LLM, length: int) -> None:
    """Raise InputError where texts of so many tokens cannot be repeated by the model."""
    if any(llm.decoder.shape.windows):
        raise InputError(
            "a layer of this model has a sliding window, outside of which nothing is repeated; use heads that learn "
            "logits: winnow train locret"
        )
    if length < LEAST:
        raise InputError(f"length={length} leaves nothing to be repeated; use at least {LEAST}")
    room = Plan(keep=KVzip(budget=5, local=1)).room(llm.decoder.shape, 1)
    if room is not None and room <= LEAST:
        raise InputError(f"the model's {llm.decoder.shape.max_positions} positions leave none to repeat a text in")


def label_repeated(llm: LLM, ids: Sequence[int], *, length: int) -> Labelled:
    """The projections of the first tokens of a text, and the logarithm of what KVzip scores them there.

    The text is cut behind `length` tokens and the one after them, or where the model has no positions to repeat it.
    Source: Jegou and Jeblick, KVzap, arXiv:2601.07891, but for the norms of KVzip+.
    """
    scores: list[Tensor] = []

    class Scored(KVzip):
        """Keeps all, and says the scores."""

        def select_all(self, caches: Sequence[LayerCache], prompt: int) -> None:
            scores.extend(cache.live_scores() for cache in caches)

        def select(self, *arguments: object) -> None:
            """All stay."""

    plan, told = Plan(keep=Scored(budget=5, local=1)), _Inputs(llm.decoder.shape.layers)
    room = plan.room(llm.decoder.shape, 1)
    with llm.session(plan=plan, max_tokens=1, observer=told) as session:
        session.feed(list(ids[: length + 1 if room is None else min(length + 1, room)]))
    tokens = scores[0].shape[1]
    inputs = [torch.cat(pieces)[:tokens] for pieces in told.pieces]  # copies: what inference made takes no gradient
    return Labelled(inputs, [each.clamp_min(FLOOR).log() for each in scores])


class _Inputs(Observer):
    """pieces: per layer, [rows, inputs] each."""

    def __init__(self, layers: int) -> None:
        self.pieces: list[list[Tensor]] = [[] for _ in range(layers)]

    def projected(self, layer: int, part: Segment, q: Tensor, k: Tensor, v: Tensor, scale: float) -> None:
        self.pieces[layer].append(joined(q, k, v))
