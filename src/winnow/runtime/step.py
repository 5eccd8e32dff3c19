"""One step: a flat batch of rows of many sequences goes through the layers once.

Rows of a sequence stand side by side and carry their positions; there is no padding. Linear layers see one big batch,
attention works per segment. Between two layers a compute policy may let rows of a segment stop.
"""

from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from winnow.errors import UnsupportedModelError
from winnow.kernels.attend import attend
from winnow.kernels.merge import merge
from winnow.runtime.decoder import NOT_ROTATED, Decoder
from winnow.runtime.sequence import Sequence

# What layers hand to the attention function besides tensors, and what it may ignore: none of it changes the result.
IGNORED = frozenset({"dropout", "position_ids", "use_cache", "output_attentions", "output_router_logits", "is_causal"})

Tables = dict[str | None, tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Segment:
    """The rows of one sequence in a step: `[start, stop)` of the flat batch, at `positions` [rows], from `first` on.

    consecutive: whether the positions rise by one; not so where a compute policy has let rows stop.
    """

    sequence: Sequence
    start: int
    stop: int
    first: int
    positions: Tensor
    decode: bool
    consecutive: bool = True


class Step:
    """One pass of `segments` over all layers; the object that the registered attention function calls back."""

    def __init__(self, decoder: Decoder, segments: list[Segment]) -> None:
        self.decoder = decoder
        self.segments = segments
        self.layer = 0
        self._rotate_rows()

    def run(self, ids: Tensor) -> Tensor:
        """[rows] token ids -> [rows, hidden] after the last layer, of the rows that reached it."""
        hidden = self.decoder.embed(ids)
        for layer in range(self.decoder.shape.layers):
            self.layer = layer
            hidden = self.decoder.layer(layer, self._enter(hidden), self)
        return hidden[0]

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
        if unknown := others.keys() - IGNORED:
            raise UnsupportedModelError(f"{type(module).__name__} asks attention for {', '.join(sorted(unknown))}")
        if sliding_window is not None and sliding_window != window:
            raise UnsupportedModelError(f"{type(module).__name__}: window {sliding_window} where {window} was expected")
        rotary, kind = self.decoder.rotary, self.decoder.rope_kinds[self.layer]

        def seen_from(segment: Segment, limit: int | None) -> Tensor:
            """Queries of a segment, [rows, q_heads, head_dim], rotated at their own positions or at most at `limit`."""
            rows = slice(segment.start, segment.stop)
            if limit is None or kind is NOT_ROTATED:
                return q[0, :, rows].transpose(0, 1)
            return rotary.rotate(unrotated[:, :, rows], self._limited(segment, limit)[kind])[0].transpose(0, 1)

        unrotated = q
        if kind is not NOT_ROTATED:
            q, k = rotary.rotate_both(q, k, self._tables[kind])
        keywords = {"scale": scaling, "softcap": softcap}
        out = [self._attend_segment(s, seen_from, k[0], v[0], window, s_aux, keywords) for s in self.segments]
        return (out[0] if len(out) == 1 else torch.cat(out))[None]

    def _attend_segment(
        self,
        segment: Segment,
        seen_from: Callable[[Segment, int | None], Tensor],
        k: Tensor,
        v: Tensor,
        window: int | None,
        sinks: Tensor | None,
        keywords: dict[str, Any],
    ) -> Tensor:
        """Append, ask the plan what to see and read, attend, evict. Returns [rows, q_heads, head_dim]."""
        sequence, rows = segment.sequence, slice(segment.start, segment.stop)
        cache, plan = sequence.caches[self.layer], sequence.plan
        cache.append(k[:, rows], v[:, rows], segment.positions, segment.first if segment.consecutive else None)
        spans = plan.keep.spans(cache, segment.stop - segment.start, segment.first, segment.positions, window)
        if segment.decode:
            kept, spans = spans, plan.read.spans(cache, spans)
            sequence.read_less |= spans is not kept
            sequence.stats.units_read += sum(span.stop - span.start for span in spans) * k.shape[0]
        parts: list[Any] = [
            attend(
                seen_from(segment, span.query_limit),
                cache.slab.keys[:, span.start : span.stop],
                cache.slab.values[:, span.start : span.stop],
                segment.positions,
                cache.positions[..., span.start : span.stop],
                past=span.past,
                window=span.window,
                sinks=sinks if span is spans[0] else None,  # an extra logit, to be counted once
                return_lse=len(spans) > 1,
                **keywords,
            )
            for span in spans
        ]
        plan.keep.evict(cache, window)
        return merge(parts) if len(parts) > 1 else parts[0]

    def _enter(self, hidden: Tensor) -> Tensor:
        """Let the compute policies choose the rows that enter this layer; count them."""
        chosen = [s.sequence.plan.compute.rows(self.layer, s.positions) for s in self.segments]
        if any(index is not None for index in chosen):
            hidden = hidden[:, self._shrink(chosen)]
        for segment in self.segments:
            segment.sequence.stats.rows_computed += segment.stop - segment.start
        return hidden

    def _shrink(self, chosen: Rows[Tensor | None]) -> Tensor:
        """Renumber the segments to the rows that go on; returns their index in the batch so far."""
        kept, segments, start = [], [], 0
        for segment, choice in zip(self.segments, chosen, strict=True):
            everyone = torch.arange(segment.stop - segment.start, device=segment.positions.device)
            index = everyone if choice is None else choice
            positions = segment.positions[index]
            stop, first, last = start + index.shape[0], int(positions[0]), int(positions[-1])
            consecutive = last - first + 1 == stop - start
            segments.append(
                replace(segment, start=start, stop=stop, first=first, positions=positions, consecutive=consecutive)
            )
            kept.append(segment.start + index)
            start = stop
        self.segments = segments
        self._rotate_rows()
        return torch.cat(kept)

    def _limited(self, segment: Segment, limit: int) -> Tables:
        """cos and sin of a segment's rows at rope positions of at most `limit`; the same in every layer."""
        key = (segment.start, limit)
        if key not in self._limited_tables:
            rope = segment.positions.clamp(max=limit)
            self._limited_tables[key] = self.decoder.rotary.tables(segment.sequence.frequencies, rope)
        return self._limited_tables[key]

    def _rotate_rows(self) -> None:
        """cos and sin of every row, from its own sequence's frequencies."""
        self._limited_tables: dict[tuple[int, int], Tables] = {}
        first = self.segments[0].sequence.frequencies
        if all(s.sequence.frequencies is first for s in self.segments):
            positions = [s.positions for s in self.segments]
            self._tables: Tables = self.decoder.rotary.tables(
                first, positions[0] if len(positions) == 1 else torch.cat(positions)
            )
            return
        each = [self.decoder.rotary.tables(s.sequence.frequencies, s.positions) for s in self.segments]
        self._tables = {
            kind: (torch.cat([t[kind][0] for t in each], 1), torch.cat([t[kind][1] for t in each], 1))
            for kind in each[0]
        }
