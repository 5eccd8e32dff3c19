"""The units that rows attend to in one layer, and how much the current token attends to each."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from winnow.cache.layer import LayerCache
from winnow.kernels.dots import dots
from winnow.policies.base import Span
from winnow.runtime.segment import Segment

ANYONE = -1  # in place of the position of a unit that every row sees


@dataclass(frozen=True)
class View:
    """Units that rows attend to: tensors [kv_heads, units, head_dim], positions [..., units]; otherwise as `Span`.

    order: what the rows' positions are compared with: the units' positions, or ANYONE.
    """

    keys: Tensor
    values: Tensor
    positions: Tensor
    order: Tensor
    past: int | None
    window: int | None
    query_limit: int | None


def view_of(part: Segment, cache: LayerCache, span: Span, fresh: int) -> View:
    """The units of a span that this step sees; units that it does not see are not read.

    fresh: how many units at the end of the cache this step has appended.
    """
    slots = slice(span.start, span.stop)
    keys, values, positions = cache.slab.keys[:, slots], cache.slab.values[:, slots], cache.positions[..., slots]
    past, length = span.past, span.stop - span.start
    seen = part.seen[positions] if part.seen is not None else None
    if seen is not None and span.window is not None:  # rows ascend, so the first one sees farthest back
        seen = seen & (positions > part.positions[0] - span.window)
    if seen is not None and not seen.all():
        index = seen.nonzero().flatten()
        positions, index = positions[index], index + span.start
        # From the whole slab: torch gathers several times as fast from contiguous tensors as from slices of them.
        keys, values = cache.slab.keys.index_select(1, index), cache.slab.values.index_select(1, index)
        past = len(index) - 1 if part.rows == 1 else None
    if part.late:  # units of later positions may stand before the rows' own
        past = None
    order = positions
    if part.late and span.window is None and part.sequence.plan.compute.relaxed:
        order = positions.clone()
        order[: len(order) - min(fresh, length)] = ANYONE
    return View(keys, values, positions, order, past, span.window, span.query_limit)


def attention_of(
    queries: list[Tensor], views: list[View], part: Segment, sinks: Tensor | None, keywords: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """How much the last row of a part attends to each unit: [q_heads, units] float32, and their positions [units].

    queries: per view [q_heads, head_dim].
    """
    current, softcap = part.positions[-1], keywords["softcap"]
    logits = []
    for query, view in zip(queries, views, strict=True):
        each = keywords["scale"] * dots(query, view.keys)  # [q_heads, units]
        if softcap is not None:
            each = softcap * (each / softcap).tanh()
        if view.window is not None:
            each = each.masked_fill(current - view.positions >= view.window, float("-inf"))
        logits.append(each)
    everything = torch.cat(logits, 1)
    extra = sinks.float()[:, None] if sinks is not None else everything[:, :0]
    weights = torch.cat((everything, extra), 1).softmax(-1)[:, : everything.shape[1]]
    return weights, torch.cat([view.positions for view in views])


def mean_over_heads(weights: Tensor, positions: Tensor, known: int) -> Tensor:
    """What `attention_of` returns, as the mean over heads at each of `known` positions; [known] float32."""
    mean = weights.new_zeros(known)
    mean[positions] = weights.mean(0)
    return mean
