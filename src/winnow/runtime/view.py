"""The units that rows attend to in one layer, and how much the current token attends to each."""

from collections.abc import Iterator

import torch
from torch import Tensor

from winnow.cache.layer import LayerCache
from winnow.cache.pattern import Span
from winnow.cache.run import Dense, joined
from winnow.cache.view import NOBODY, View
from winnow.kernels.attend.reference import visible
from winnow.runtime.projected import Projected
from winnow.runtime.segment import Segment

VOTING_ROWS = 64  # the attention of so many rows at a time: a row is as long as the cache, for every query head
ANYONE = -1  # in place of the position of a unit that every row sees


def view_of(part: Segment, cache: LayerCache, span: Span, fresh: int) -> View:
    """The units of a span that this step sees; units that it does not see are not read.

    fresh: how many units at the end of the cache this step has appended.
    """
    runs, positions = cache.memory.runs(span.start, span.stop), cache.positions_between(span.start, span.stop)
    past, length = span.past, span.stop - span.start
    looks = part.seen is not None and not (part.whole and span.window is None)  # for what the step does not see
    padding = None if cache.ragged is None else positions == NOBODY
    seen = None
    if part.seen is not None and looks:
        seen = part.seen[positions] if padding is None else part.seen[positions.clamp(max=part.known - 1)] & ~padding
    revives = part.sequence.gates.revives  # then units stay that have left the window
    if seen is not None and span.window is not None and revives:  # rows ascend, so the first one sees farthest back
        seen = seen & (positions > part.positions[0] - span.window)
    gathered = seen is not None and not bool(seen.all())
    if gathered and positions.dim() == 1:
        assert seen is not None
        index = seen.nonzero().flatten()
        positions, index = positions[index], index + span.start
        runs = [Dense(*cache.gather(index))]
        past = len(index) - 1 if part.rows == 1 else None
    elif gathered:
        assert seen is not None
        # Heads hold different tokens, so they see different numbers of them: the others are filled up at the front.
        index = seen.to(torch.int8).sort(stable=True).indices[:, -int(seen.sum(-1).max()) :]
        padding, positions, past = ~seen.gather(1, index), positions.gather(1, index), None
        keys, values = (each.gather(1, index[..., None].expand(-1, -1, each.shape[-1])) for each in joined(runs))
        runs = [Dense(keys, values)]
    if padding is not None:  # heads hold different numbers of units
        past = None
    if part.late:  # units of later positions may stand before the rows' own
        past = None
    order = positions
    if part.late and span.window is None and part.sequence.gates.relaxed:
        order = positions.clone()
        order[..., : order.shape[-1] - min(fresh, length)] = ANYONE
    if padding is not None:
        order = order.masked_fill(padding, NOBODY)
    place = span.start if span.start < cache.head else cache.head + span.start - cache.start
    return View(tuple(runs), positions, order, past, span.window, span.query_limit, place, gathered)


def attention_of(queries: list[Tensor], views: list[View], part: Segment, rows: Projected) -> tuple[Tensor, Tensor]:
    """How much the last row of a part attends to each unit: [q_heads, units] float32, and their positions [..., units].

    queries: per view [q_heads, head_dim].
    """
    current = part.positions[-1]
    everything = torch.cat(
        [of_seen(rows.match(query, view.keys), view, current) for query, view in zip(queries, views, strict=True)], 1
    )
    extra = rows.sinks.float()[:, None] if rows.sinks is not None else everything[:, :0]
    weights = torch.cat((everything, extra), 1).softmax(-1)[:, : everything.shape[1]]
    return weights, side_by_side([view.positions for view in views])


def of_seen(logits: Tensor, view: View, position: Tensor) -> Tensor:
    """Logits of a row at `position`, [q_heads, units]: -inf where it does not see a unit of the view."""
    if view.past is not None and view.window is None:
        return logits
    hidden = ~visible(position[None], view.order, view.window)[:, 0]  # [1 or kv_heads, units]
    return logits.masked_fill(_per_query_head(hidden, len(logits)), float("-inf"))


def weights_of(
    queries: list[Tensor], views: list[View], part: Segment, rows: Projected, from_row: int
) -> Iterator[Tensor]:
    """How much rows of a part attend to each unit, [some rows, kv_heads, group, units] float32 at a time.

    queries: per view [rows, q_heads, head_dim]; from_row: the first row that counts.
    """
    if part.rows == 1:
        weights, _ = attention_of([query[-1] for query in queries], views, part, rows)
        yield weights.view(1, len(views[0].keys), -1, weights.shape[1])
        return
    for start in range(from_row, part.rows, VOTING_ROWS):
        block = slice(start, start + VOTING_ROWS)
        logits = []
        for query, view in zip(queries, views, strict=True):
            kv_heads, units, head_dim = view.keys.shape
            grouped = query[block].float().view(-1, kv_heads, query.shape[1] // kv_heads, head_dim)
            each = rows.capped(rows.scale * torch.einsum("rhgd,hud->rhgu", grouped, view.keys.float()))
            seen = visible(part.positions[block], view.order, view.window).expand(kv_heads, -1, units)
            logits.append(each.masked_fill(~seen.transpose(0, 1)[:, :, None], float("-inf")))
        units = sum(each.shape[-1] for each in logits)
        if rows.sinks is not None:
            logits.append(rows.sinks.float().view(1, *logits[0].shape[1:3], 1).expand(len(logits[0]), -1, -1, -1))
        everything = logits[0] if len(logits) == 1 else torch.cat(logits, -1)
        yield everything.softmax(-1)[..., :units]


def mass_of(queries: Tensor, view: View, positions: Tensor, rows: Projected, lse: Tensor) -> Tensor:
    """How much attention units of a view got of some rows, added up: [q_heads, units] float32.

    queries: [rows, q_heads, head_dim], of rows at `positions`. lse: [rows, q_heads], over all that they attend to. The
    view's positions ascend, and are the same for all heads.
    """
    keys, heads = view.keys, queries.shape[1]
    mass = torch.zeros(heads, view.units, dtype=torch.float32, device=keys.device)
    for some, at, whole in zip(*(each.split(VOTING_ROWS) for each in (queries, positions, lse)), strict=True):
        seen = visible(at, view.order, view.window)[0]  # [rows, units]
        if not (there := seen.any(0).nonzero().flatten().tolist()):
            continue
        first, stop = there[0], there[-1] + 1
        grouped = some.transpose(0, 1).reshape(len(keys), -1, keys.shape[2])
        logits = rows.capped((grouped @ keys[:, first:stop].mT).float().mul_(rows.scale)).view(heads, len(some), -1)
        weights = (logits - whole.T[..., None]).exp_()
        # Whatever all rows see is most of it, and lies in between.
        common = seen[:, first:stop].all(0).nonzero().flatten().tolist() or [stop - first]
        for edge in (slice(0, common[0]), slice(common[-1] + 1, None)):
            weights[..., edge].masked_fill_(~seen[:, first:stop][:, edge], 0.0)
        mass[:, first:stop] += weights.sum(1)
    return mass


def mean_over_heads(weights: Tensor, positions: Tensor, known: int) -> Tensor:
    """What `attention_of` returns, as the mean over query heads at each of `known` positions; [known] float32."""
    mean = weights.new_zeros(known)
    if positions.dim() == 1:
        mean[positions] = weights.mean(0)
        return mean
    positions = positions.clamp(max=known - 1)  # where a head has no unit, its weight is 0
    of_each = _per_query_head(positions, len(weights)).expand_as(weights)
    return mean.index_add_(0, of_each.flatten(), (weights / len(weights)).flatten())


def at_positions(weights: Tensor, positions: Tensor, known: int) -> Tensor:
    """What `attention_of` returns, at each of `known` positions: [q_heads, known] float32."""
    found = weights.new_zeros(len(weights), known)
    if positions.dim() == 1:
        found[:, positions] = weights
        return found
    # Where a head has no unit, its weight is 0.
    of_each = _per_query_head(positions.clamp(max=known - 1), len(weights)).expand_as(weights)
    return found.scatter_add_(1, of_each, weights)


def _per_query_head(of_units: Tensor, q_heads: int) -> Tensor:
    """What is true of units, [1 or kv_heads, units] or [units], once per query head where KV heads differ; what is true
    of all of them, as it is."""
    same = of_units.dim() == 1 or len(of_units) == 1
    return of_units if same else of_units.repeat_interleave(q_heads // len(of_units), 0)


def side_by_side(positions: list[Tensor]) -> Tensor:
    """[..., units] of several views; [kv_heads, units] where KV heads differ in one of them."""
    heads = max(each.dim() for each in positions)
    if heads == 1:
        return torch.cat(positions)
    kv_heads = max(len(each) for each in positions if each.dim() == 2)
    return torch.cat([each.expand(kv_heads, -1) for each in positions], -1)
