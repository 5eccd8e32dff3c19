"""The rows that go through a layer together, and their attention: rotate, append, see, read, evict.

A block is the object that the registered attention function calls back. Most steps are one block; a step whose rows
were set aside chunk by chunk and all go on at once is cut into blocks again, so that activations stay bounded.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from winnow.cache.layer import LayerCache
from winnow.cache.pattern import Span
from winnow.cache.view import View
from winnow.errors import UnsupportedModelError
from winnow.kernels.attend import attend
from winnow.kernels.merge import merge
from winnow.kernels.sparse import attend_cells
from winnow.policies.keep.base import Repeat
from winnow.policies.prefill.base import Piece
from winnow.policies.read.base import Blocks, Copies, Observed, Pages, Ranked, Row
from winnow.runtime.decoder import Decoder
from winnow.runtime.observer import Attended
from winnow.runtime.outputs import entering_norms, head_norms
from winnow.runtime.projected import Projected, Ropes, Tables
from winnow.runtime.segment import Segment
from winnow.runtime.sequence import settle
from winnow.runtime.shape import NOT_ROTATED
from winnow.runtime.view import (
    at_positions,
    attention_of,
    mass_of,
    mean_over_heads,
    side_by_side,
    view_of,
    weights_of,
)

# What layers hand to the attention function besides tensors, and what it may ignore: none of it changes the result.
IGNORED = frozenset({"dropout", "position_ids", "use_cache", "output_attentions", "output_router_logits", "is_causal"})


class Block:
    """Rows `[start, stop)` of a step's flat batch, with the parts of its segments that lie there."""

    def __init__(self, decoder: Decoder, segments: list[Segment], start: int, stop: int) -> None:
        self.decoder = decoder
        self.layer = 0
        self.entering: Tensor | None = None  # the rows, [rows, hidden], as they come to the layer
        self.rows = slice(start, stop)
        there = [s for s in segments if max(start, s.start) < min(stop, s.stop)]
        found = [(s, part) for s in there for part in s.part(start, stop).together]
        self.whole, self.parts = [s for s, _ in found], [part for _, part in found]
        # Rows of each whole segment that come to the layer before a part's.
        self.before = [start + part.start - s.start for s, part in found]
        self._ropes = Ropes(decoder)
        self._rotate_rows()

    def attend(
        self,
        module: nn.Module,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scaling: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **others: Any,
    ) -> Tensor:
        """The attention of one layer. q: [1, q_heads, rows, head_dim], k, v: [1, kv_heads, rows, head_dim], unrotated.

        Returns [1, rows, q_heads, head_dim].
        """
        window = self.decoder.shape.windows[self.layer]
        check_call(module, window, sliding_window, others)
        rotary, kind = self.decoder.rotary, self.decoder.rope_kinds[self.layer]
        rotated = (q, k) if kind is NOT_ROTATED else rotary.rotate_both(q, k, self._tables[kind])
        rows = Projected(
            self.decoder, self._ropes, kind, q[0], k[0], rotated[0][0], rotated[1][0], v[0], scaling, softcap, s_aux
        )
        out = [self._attend_part(index, rows, window) for index in range(len(self.parts))]
        return (out[0] if len(out) == 1 else torch.cat(out))[None]

    def _attend_part(self, index: int, rows: Projected, window: int | None) -> Tensor:
        """Append, ask the plan what to see and read, attend, evict. Returns [rows, q_heads, head_dim]."""
        part = self.parts[index]
        sequence = part.sequence
        cache = sequence.caches[self.layer]
        self_only = self.layer in sequence.gates.self_only
        self._append(part, cache, rows)
        spans = sequence.patterns[self.layer].spans(cache, part.rows, part.first, part.positions, window)
        # The anchor at position 0 is a row only where its units were not there.
        alone = part.rows - (part.first == 0 and 0 in sequence.deep.anchors) if self_only else 0
        if self_only:
            spans = _each_alone(cache, alone, window)
        seen = (view_of(part, cache, span, fresh=self.before[index] + part.rows) for span in spans)
        views = [view for view in seen if view.units]
        compact = cache.length if cache.compact else None
        row = self._row(index, cache, rows, window)
        if part.decode:
            views = self._narrow(index, row, rows, views, sum(span.stop - span.start for span in spans))
        elif sequence.plan.read.whole:
            views = self._narrow_prompt(part, row, rows, views)
        views = [row.ready(view) for view in views]
        queries = [rows.queries(part, view.query_limit, compact) for view in views]
        out = self._attend_views(index, rows, queries, views, row)
        self._listen(index, rows, queries, views)
        if self_only:
            cache.retract(alone)
        if self.layer + 1 == len(sequence.caches) or sequence.caches[self.layer + 1] is not cache:
            sequence.leave(self.layer)
        return out

    def _append(self, part: Segment, cache: LayerCache, rows: Projected) -> None:
        """Bring the units of a part into the cache, with their scores."""
        sequence = part.sequence
        if (watcher := sequence.watcher) is not None:
            watcher.projected(self.layer, part, *rows.rows(part), rows.scale)
        ahead = sequence.evictions_ahead(self.layer)
        if not cache.rotated and not ahead:
            settle(self.decoder, sequence, self.layer)
        if sequence.queries is not None and ahead and cache.scores is not None:
            sequence.queries.note(self.layer, rows.rows(part)[0].float() * rows.scale, part.positions)
        given = sequence.gates.fills.get(self.layer)
        if given is not None and given.all_rows:
            return
        score = sequence.scorer if ahead and cache.scores is not None else None  # nobody asks for scores any more
        scores = None if score is None else score(self.layer, *rows.rows(part))
        rows.append(part, cache, scores)
        reach = sequence.plan.read.reach
        if reach is not None and sequence.shape.windows[self.layer] is None:
            cache.turn(part.first - reach + 1, lambda keys, first: rows.nearer(part, keys, first))

    def _narrow(self, index: int, row: Row, rows: Projected, views: list[View], units: int) -> list[View]:
        """What the rows of a decode step read of all that they may see, `units` per KV head, and count it."""
        part, extra = self.parts[index], 0
        sequence = part.sequence
        if self.whole[index].rows == 1:  # revived rows come in steps that read everything
            chosen = sequence.reader.select(row, views)
            views = [self._chosen(part, rows, each) for each in chosen]
            extra = sum(each.besides for each in chosen if not isinstance(each, (View, Copies)))
        read = sum(view.units for view in views)
        sequence.read_less |= read < units
        sequence.stats.units_read += sum(view.total for view in views) + extra * self.decoder.shape.kv_heads
        return views

    def _narrow_prompt(self, part: Segment, row: Row, rows: Projected, views: list[View]) -> list[View]:
        """What rows of a prompt read together of all that they may see, and count it where they may see everything."""
        sequence, stats = part.sequence, part.sequence.stats
        seen = sum(view.units for view in views)
        views = [self._chosen(part, rows, each) for each in sequence.reader.select(row, views)]
        if row.window is None:
            left = seen - sum(view.units for view in views if view.place is not None)  # others are read twice
            pairs = part.rows * seen - part.rows * (part.rows - 1) // 2
            stats.pairs_read += sequence.shape.q_heads * (pairs - part.rows * left)
            stats.pairs_full += sequence.shape.q_heads * pairs
        return views

    def _chosen(self, part: Segment, rows: Projected, answer: View | Pages | Ranked | Blocks | Copies) -> View:
        """The units that a reader has answered with, now that the rows have queries."""
        if isinstance(answer, (Pages, Ranked, Blocks)):
            cache = part.sequence.caches[self.layer]
            queries = rows.queries(part, answer.view.query_limit, cache.length if cache.compact else None)
            return answer.chosen(self.layer, queries)
        return answer.view if isinstance(answer, Copies) else answer

    def _attend_views(self, index: int, rows: Projected, queries: list[Tensor], views: list[View], row: Row) -> Tensor:
        """The attention of a part over all its views, as one softmax. Returns [rows, q_heads, head_dim]."""
        part, reader = self.parts[index], self.parts[index].sequence.reader
        wanted = reader.wants(row, views) if row.last or not part.decode else None
        shown = wanted in ("logits", "mass") and part.rows == 1
        pieces = [(query, piece) for query, view in zip(queries, views, strict=True) for piece in view.pieces]
        summed = len(pieces) > 1 or wanted == "mass"  # by the log-sum-exp of each
        skipping = self._attend_chosen(part, rows, queries, views)
        parts: list[Any] = (
            [skipping]
            if skipping is not None
            else [
                attend(
                    query,
                    *piece.lying,
                    part.positions,
                    piece.order,
                    past=piece.past,
                    window=piece.window,
                    scale=rows.scale,
                    softcap=rows.softcap,
                    sinks=rows.sinks if index == 0 else None,  # an extra logit, to be counted once
                    return_lse=summed,
                    return_logits=shown,
                    index=piece.index,
                )
                for index, (query, piece) in enumerate(pieces)
            ]
        )
        logits: list[Tensor] = []
        if shown:
            shares = iter([each for *_, each in parts])
            logits = [torch.cat([next(shares) for _ in view.pieces], 1) for view in views]
            parts = [(out, lse) for out, lse, _ in parts] if summed else [parts[0][0]]
        elif wanted == "logits":
            logits = [row.match(q[-1], view.keys) for q, view in zip(queries, views, strict=True)]
        if wanted is not None:
            told, mass = queries if wanted == "queries" else [], None
            if wanted == "mass":
                lse = torch.stack([lse for _, lse in parts]).logsumexp(0)
                mass = partial(_mass, part, rows, queries, views, logits, lse)
            reader.observe(row, views, Observed(part.positions, told, logits, mass))
        return merge(parts) if isinstance(parts[0], tuple) else parts[0]

    def _attend_chosen(self, part: Segment, rows: Projected, queries: list[Tensor], views: list[View]) -> Tensor | None:
        """The attention of a prompt's rows over the units that its plan has chosen, [rows, q_heads, head_dim]; None
        where they read everything: in layers that not all tokens reach, and in those with a sliding window."""
        sequence = part.sequence
        whole = self.layer < sequence.gates.first and sequence.shape.windows[self.layer] is None
        if sequence.chooser is None or part.decode or not whole:
            return None
        [view] = views
        assert view.past == view.units - part.rows
        keys, values = view.lying
        piece = Piece(self.layer, queries[0].transpose(0, 1), keys, rows.scale, rows.softcap, rows.sinks)
        cells, stats = sequence.chooser(piece), sequence.stats
        stats.pairs_read += cells.pairs(piece.rows, piece.units)
        stats.pairs_full += piece.everything(cells.rows).pairs(piece.rows, piece.units)
        return attend_cells(queries[0], keys, values, cells, scale=rows.scale, softcap=rows.softcap, sinks=rows.sinks)

    def _row(self, index: int, cache: LayerCache, rows: Projected, window: int | None) -> Row:
        """The last row of a part, for the read policy."""
        part = self.parts[index]
        return Row(
            layer=self.layer,
            position=part.known - 1,
            rows=part.rows,
            window=window,
            decode=part.decode,
            last=self._last(index),
            appended=cache.appended,
            dropped=cache.dropped,
            ordered=not part.sequence.gates.revives,
            match=rows.match,
            ready=lambda view: (
                view
                if cache.rotated or view.place is None
                else view.with_keys(rows.placed(part, view.keys, view.place))
            ),
            nearer=lambda view: view.with_keys(rows.nearer(part, view.keys, view.place or 0)),
        )

    def _last(self, index: int) -> bool:
        """Whether a part ends with the last row of its sequence, and the prompt's tokens are all there."""
        part, whole = self.parts[index], self.whole[index]
        return self.before[index] + part.rows == whole.rows and part.known >= part.sequence.prompt

    def _listen(self, index: int, rows: Projected, queries: list[Tensor], views: list[View]) -> None:
        """Tell the policies that asked for it, and the observer, how rows attended."""
        part, whole = self.parts[index], self.whole[index]
        sequence, score = part.sequence, part.sequence.score

        def weights() -> tuple[Tensor, Tensor]:
            return attention_of([query[-1] for query in queries], views, part, rows)

        if self.layer in part.ranked_in:
            if not part.ranks_alone:
                self._vote(index, rows, queries, views)
            elif self._last(index):
                whole.signals[self.layer] = mean_over_heads(*weights(), part.known)
        held = score is not None and sequence.patterns[self.layer].held
        first = sequence.plan.keep.voting_from(part.first, sequence.prompt) if held else None
        if score is not None and first is not None and (abstain := part.before(first)) < part.rows:
            for block in weights_of(queries, views, part, rows, from_row=abstain):
                sequence.caches[self.layer].add_scores(score.votes(block))
        if held and (repeat := sequence.repeat) is not None:
            self._score_repeat(repeat, part, rows, queries, views)
        if (watcher := sequence.watcher) is not None:
            watcher.attended(Attended(self.layer, part, views, whole.signals, weights))

    def _vote(self, index: int, rows: Projected, queries: list[Tensor], views: list[View]) -> None:
        """Add how rows of a part attend that have a say in who goes on; once all have voted, tell the policy."""
        part, whole = self.parts[index], self.whole[index]
        sequence, gates = part.sequence, part.sequence.gates
        positions = side_by_side([view.positions for view in views])
        votes = sequence.votes.get(
            self.layer, torch.zeros(self.decoder.shape.q_heads, 0, dtype=torch.float32, device=positions.device)
        )
        votes = pad(votes, (0, part.known - votes.shape[1]))
        first = part.before(sequence.prompt - gates.voters)
        for block in weights_of(queries, views, part, rows, from_row=first) if first < part.rows else ():
            some = at_positions((block.amax(0) if gates.peaks else block.sum(0)).flatten(0, 1), positions, part.known)
            votes = votes.maximum(some) if gates.peaks else votes + some / min(gates.voters, sequence.prompt)
        sequence.votes[self.layer] = votes
        if self._last(index):
            whole.signals[self.layer] = sequence.votes.pop(self.layer).mean(0)

    def _score_repeat(
        self, repeat: Repeat, part: Segment, rows: Projected, queries: list[Tensor], views: list[View]
    ) -> None:
        """Score the units of a chunk by the attention of rows that repeat it to them, the first ones and themselves."""
        [view], score, cache = views, part.sequence.score, part.sequence.caches[self.layer]
        assert score is not None
        before, end = min(score.sinks, repeat.first), part.sequence.repeats[-1].stop
        told = [range(before), range(repeat.first, repeat.stop), range(end, view.units)]
        seen = view.at(torch.tensor([unit for units in told for unit in units], device=part.positions.device))
        chunk, first = slice(before, before + repeat.stop - repeat.first), 0
        outputs = entered = None
        if score.normalised:
            assert self.entering is not None
            outputs = head_norms(self.decoder, self.layer, seen.values[:, chunk])
            entered = entering_norms(self.decoder, self.layer, self.entering[part.start : part.stop])
        for block in weights_of(queries, [seen], part, rows, from_row=0):
            of_chunk = block[..., chunk]
            if outputs is not None and entered is not None:
                of_chunk = of_chunk * outputs / entered[first : first + len(block), None, None, None]
            cache.raise_scores(score.votes(of_chunk), repeat.first)
            first += len(block)

    def _rotate_rows(self) -> None:
        """cos and sin of every row, from its own sequence's frequencies."""
        first = self.parts[0].sequence.frequencies
        if all(s.sequence.frequencies is first for s in self.parts):
            positions = [s.positions for s in self.parts]
            self._tables: Tables = self.decoder.rotary.tables(
                first, positions[0] if len(positions) == 1 else torch.cat(positions)
            )
            return
        each = [self.decoder.rotary.tables(s.sequence.frequencies, s.positions) for s in self.parts]
        self._tables = {
            kind: (torch.cat([t[kind][0] for t in each], 1), torch.cat([t[kind][1] for t in each], 1))
            for kind in each[0]
        }


def check_call(module: nn.Module, window: int | None, sliding_window: int | None, others: dict[str, Any]) -> None:
    """Raise UnsupportedModelError where a layer asks attention for anything unknown. window: the one expected."""
    if unknown := others.keys() - IGNORED:
        raise UnsupportedModelError(f"{type(module).__name__} asks attention for {', '.join(sorted(unknown))}")
    if sliding_window is not None and sliding_window != window:
        raise UnsupportedModelError(f"{type(module).__name__}: window {sliding_window} where {window} was expected")


def _mass(
    part: Segment, rows: Projected, queries: list[Tensor], views: list[View], logits: list[Tensor], lse: Tensor, at: int
) -> Tensor:
    """How much attention the units of one of some views got of all rows of a part, [q_heads, units] float32.

    logits: of each view, where there is one row; lse: the log-sum-exp of each row over all views, [rows, q_heads].
    """
    if logits:
        return (logits[at] - lse[-1][:, None]).exp()
    return mass_of(queries[at], views[at], part.positions, rows, lse)


def _each_alone(cache: LayerCache, rows: int, window: int | None) -> list[Span]:
    """Each of the last `rows` units of a cache is seen by its own row only, those before them as in any layer."""
    first = cache.stop - rows
    spans = [Span(cache.start, first, None, window), Span(first, cache.stop, past=None, window=1)]
    return [span for span in spans if span.start < span.stop]
