"""The rows that go through a layer together, and their attention: rotate, append, see, read, evict.

A block is the object that the registered attention function calls back. Most steps are one block; a step whose rows
were set aside chunk by chunk and all go on at once is cut into blocks again, so that activations stay bounded.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from winnow.cache.layer import LayerCache
from winnow.errors import UnsupportedModelError
from winnow.kernels.attend import attend
from winnow.kernels.merge import merge
from winnow.policies.base import Span
from winnow.runtime.decoder import NOT_ROTATED, Decoder
from winnow.runtime.observer import Attended
from winnow.runtime.segment import Segment
from winnow.runtime.view import attention_of, mean_over_heads, view_of

# What layers hand to the attention function besides tensors, and what it may ignore: none of it changes the result.
IGNORED = frozenset({"dropout", "position_ids", "use_cache", "output_attentions", "output_router_logits", "is_causal"})

Tables = dict[str | None, tuple[Tensor, Tensor]]


class Block:
    """Rows `[start, stop)` of a step's flat batch, with the parts of its segments that lie there."""

    def __init__(self, decoder: Decoder, segments: list[Segment], start: int, stop: int) -> None:
        self.decoder = decoder
        self.layer = 0
        self.rows = slice(start, stop)
        self.whole = [s for s in segments if max(start, s.start) < min(stop, s.stop)]
        self.parts = [s.part(start, stop) for s in self.whole]
        # Rows of each whole segment that earlier blocks have brought to the layer already.
        self.before = [max(0, start - s.start) for s in self.whole]
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

        def seen_from(part: Segment, limit: int | None) -> Tensor:
            """Queries of a part, [rows, q_heads, head_dim], rotated at their own positions or at most at `limit`."""
            rows = slice(part.start, part.stop)
            if limit is None or kind is NOT_ROTATED:
                return q[0, :, rows].transpose(0, 1)
            return rotary.rotate(unrotated[:, :, rows], self._limited(part, limit)[kind])[0].transpose(0, 1)

        unrotated = q
        if kind is not NOT_ROTATED:
            q, k = rotary.rotate_both(q, k, self._tables[kind])
        keywords = {"scale": scaling, "softcap": softcap}
        out = [self._attend_part(i, seen_from, k[0], v[0], window, s_aux, keywords) for i in range(len(self.parts))]
        return (out[0] if len(out) == 1 else torch.cat(out))[None]

    def _attend_part(
        self,
        index: int,
        seen_from: Callable[[Segment, int | None], Tensor],
        k: Tensor,
        v: Tensor,
        window: int | None,
        sinks: Tensor | None,
        keywords: dict[str, Any],
    ) -> Tensor:
        """Append, ask the plan what to see and read, attend, evict. Returns [rows, q_heads, head_dim]."""
        part, whole = self.parts[index], self.whole[index]
        sequence, plan, rows = part.sequence, part.sequence.plan, slice(part.start, part.stop)
        cache = sequence.caches[self.layer]
        given, transient = sequence.projections.get(self.layer), self.layer in sequence.transient
        if given is None or not given.all_rows:
            cache.append(k[:, rows], v[:, rows], part.positions, part.first if part.consecutive else None)
        spans = plan.keep.spans(cache, part.rows, part.first, part.positions, window)
        # The anchor at position 0 is a row only where its units were not there.
        alone = part.rows - (part.first == 0 and 0 in sequence.deep.anchors) if transient else 0
        if transient:
            spans = _each_alone(cache, alone, window)
        read = plan.read.spans(cache, spans) if part.decode else spans
        seen = (view_of(part, cache, span, fresh=self.before[index] + part.rows) for span in read)
        views = [view for view in seen if view.keys.shape[1]]
        if part.decode:
            units = sum(view.keys.shape[1] for view in views)
            sequence.read_less |= read is not spans or units < sum(span.stop - span.start for span in spans)
            sequence.stats.units_read += units * k.shape[0]
        parts: list[Any] = [
            attend(
                seen_from(part, view.query_limit),
                view.keys,
                view.values,
                part.positions,
                view.order,
                past=view.past,
                window=view.window,
                sinks=sinks if view is views[0] else None,  # an extra logit, to be counted once
                return_lse=len(views) > 1,
                **keywords,
            )
            for view in views
        ]
        last = self.before[index] + part.rows == whole.rows and part.known >= sequence.prompt

        def weights() -> tuple[Tensor, Tensor]:
            queries = [seen_from(part, view.query_limit)[-1] for view in views]
            return attention_of(queries, views, part, sinks, keywords)

        if last and self.layer in sequence.signals[part.decode]:
            whole.signals.append(mean_over_heads(*weights(), part.known))
        if sequence.observer is not None:
            sequence.observer.attended(Attended(self.layer, part, views, whole.signals, weights))
        if transient:
            cache.retract(alone)
        if self.layer + 1 == len(sequence.caches) or sequence.caches[self.layer + 1] is not cache:
            plan.keep.evict(cache, sequence.window(window))
        return merge(parts) if len(parts) > 1 else parts[0]

    def _limited(self, part: Segment, limit: int) -> Tables:
        """cos and sin of a part's rows at rope positions of at most `limit`; the same in every layer."""
        key = (part.start, limit)
        if key not in self._limited_tables:
            rope = part.positions.clamp(max=limit)
            self._limited_tables[key] = self.decoder.rotary.tables(part.sequence.frequencies, rope)
        return self._limited_tables[key]

    def _rotate_rows(self) -> None:
        """cos and sin of every row, from its own sequence's frequencies."""
        self._limited_tables: dict[tuple[int, int], Tables] = {}
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


def _each_alone(cache: LayerCache, rows: int, window: int | None) -> list[Span]:
    """Each of the last `rows` units of a cache is seen by its own row only, those before them as in any layer."""
    first = cache.stop - rows
    spans = [Span(cache.start, first, None, window), Span(first, cache.stop, past=None, window=1)]
    return [span for span in spans if span.start < span.stop]
