"""The units of a text's first token: it sees only itself, so they are the same in every text that begins with it."""

import torch

from winnow.plan import Plan
from winnow.runtime.decoder import Decoder
from winnow.runtime.observer import Observer
from winnow.runtime.rotary import Frequencies
from winnow.runtime.segment import Segment
from winnow.runtime.sequence import Sequence, new_sequence
from winnow.runtime.step import Step

MOST = 64  # tokens and frequencies remembered; texts of a model mostly begin with the same token
Units = list[tuple[torch.Tensor, torch.Tensor]]  # per layer: keys, values [kv_heads, 1, head_dim]


class _Projections(Observer):
    """Keeps the projections of one row: per layer q, k, v [heads, 1, head_dim], unrotated."""

    def __init__(self) -> None:
        self.layers: list[tuple[torch.Tensor, ...]] = []

    def projected(
        self, layer: int, part: Segment, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> None:
        self.layers.append((q.clone(), k.clone(), v.clone()))


def plant(decoder: Decoder, state: Sequence, token: int) -> None:
    """Give a new sequence the units of its first token from the layer on at which others stop, if it goes on there.

    They are computed once per model and token.
    """
    layer = state.gates.first
    if layer == state.shape.layers or 0 not in state.deep.anchors:
        return
    place = torch.zeros(1, dtype=torch.int64, device=decoder.device)
    units, projections = _units(decoder, state.frequencies, token)
    for upper in range(layer, state.shape.layers):
        scores = None
        if state.scorer is not None and state.caches[upper].scores is not None and state.evictions_ahead(upper):
            scores = state.scorer(upper, *projections.layers[upper])
        state.caches[upper].append(*units[upper], place, first=0, scores=scores)
    state.planted = True


def _units(decoder: Decoder, frequencies: Frequencies, token: int) -> tuple[Units, _Projections]:
    known = decoder.derived.setdefault("first token", {})
    key = (id(frequencies), token)
    if key not in known:
        if len(known) == MOST:
            known.clear()
        # With the frequencies, so that no others get their id.
        known[key] = (frequencies, *_computed(decoder, frequencies, token))
    return known[key][1:]


@torch.inference_mode()
def _computed(decoder: Decoder, frequencies: Frequencies, token: int) -> tuple[Units, _Projections]:
    state = new_sequence(decoder, Plan(), 1, 1, 1)
    state.frequencies = frequencies
    state.observer = projections = _Projections()
    ids, positions = (torch.full((1,), value, device=decoder.device) for value in (token, 0))
    with decoder.inferring():
        for _ in Step(decoder, [Segment(state, 0, 1, 0, positions, decode=False, known=1)]).walk(ids):
            pass
    return [cache.live()[:2] for cache in state.caches], projections
