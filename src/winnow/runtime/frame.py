"""What one call of the kernel of few rows is told: where rows leave their units, and what they read, layer by layer.

What a row reads is found beforehand as runs of units. Where that depends on the row's own query, where someone wants to
know how it attended, or where positions have to be compared, the layer is driven instead.
"""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from winnow.cache.layer import LayerCache, Reserved
from winnow.cache.view import View
from winnow.kernels.launch import match_torch_threads, parts_of_work
from winnow.kernels.layers import tables as t
from winnow.policies.read.base import Row
from winnow.runtime.segment import Segment
from winnow.runtime.sequence import Sequence
from winnow.runtime.view import view_of

if TYPE_CHECKING:
    from winnow.runtime.program import Program

TILE = 4  # rows of a tile of products, where there is more than one
WHOLE = 128  # a run of fewer units is read by one thread


class Run(NamedTuple):
    """Units that a row reads: addresses of the first key and value, bytes from one KV head to the next, how many.

    limit: the rope position that its queries are rotated at here, where that is less than the row's own.
    """

    keys: int
    values: int
    stride: int
    size: int
    units: int
    limit: int | None


class Reading(NamedTuple):
    """What a row reads in a layer; less: not all that is kept."""

    runs: list[Run]
    less: bool


@dataclass(frozen=True)
class Cut:
    """How the runs of a layer are cut into pieces, and which thread reads which.

    Per piece: the number of its run among all rows', its KV head, its first unit, and the places of a `t.RUN` that say
    no address. bounds: pieces of each thread; heads: of each row's KV heads.
    """

    run: np.ndarray
    head: np.ndarray
    start: np.ndarray
    told: np.ndarray
    bounds: np.ndarray
    heads: np.ndarray


class Frame:
    """The rows of some segments, one of each, on their way through layers from `first` on."""

    def __init__(self, program: "Program", segments: list[Segment], first: int) -> None:
        self._program, self._segments, self._first = program, segments, first
        self._ropes: dict[tuple[int, int], int] = {}  # (which frequencies, rope position): its number
        self._places: list[tuple[int, ...]] = []  # per layer and row; numbers of ropes, -1 for none, for addresses
        self._runs: list[np.ndarray] = []  # per layer: [pieces, t.RUN]
        self._cuts: list[Cut] = []  # per layer

    def add(self, layer: int) -> bool:
        """Note what rows read in the next layer, their own units included; False where that is not known: then nothing
        has changed."""
        found: list[Reading] = []
        begun: list[tuple[LayerCache, Reserved]] = []
        for segment in self._segments:
            cache = segment.sequence.caches[layer]
            if not _takes(segment, cache, layer):
                break
            begun.append((cache, cache.reserve(segment.first)))
            if (reading := _reading(segment, cache, layer, rotated=self._program.rotated[layer])) is None:
                break
            found.append(reading)
        if len(found) < len(self._segments):
            for cache, before in begun:
                cache.give_back(before)
            return False
        for segment, reading in zip(self._segments, found, strict=True):
            self._note(segment, layer, reading)
        self._read([reading.runs for reading in found])
        return True

    def run(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] through the layers noted."""
        from winnow.kernels.attend.cpu_decode import work_floats
        from winnow.kernels.layers.cpu import layers_kernel, room_bytes

        program, shape, live = self._program, self._program.shape, len(hidden)
        rows = live if live == 1 else -(-live // TILE) * TILE
        x = hidden.new_zeros(rows, shape.hidden)
        x[:live] = hidden
        turned, places = self._turned(live)
        offsets = np.cumsum([0, *(len(runs) for runs in self._runs)])[:-1, None]
        runs = np.concatenate(self._runs)
        shares = np.stack([cut.bounds for cut in self._cuts]) + offsets
        heads = np.stack([cut.heads for cut in self._cuts]) + offsets
        group = -(-shape.q_heads // shape.kv_heads // TILE) * TILE
        work, size, threads = 4 * work_floats(group, shape.head_dim), hidden.itemsize, parts_of_work()
        most = max(len(each) for each in self._runs)
        room = room_bytes(rows, max(shape.hidden, program.mlp, shape.q_heads * shape.head_dim))
        values = t.activations(rows, shape.hidden, program.mlp, shape.q_heads, shape.kv_heads, shape.head_dim)
        frame = np.empty(t.FRAME, dtype=np.int64)
        frame[:] = (
            program.layers[self._first :].ctypes.data, places.ctypes.data, runs.ctypes.data, shares.ctypes.data,
            heads.ctypes.data, x.data_ptr(), program.memory("buffer", size * values),
            program.memory("work", work * most), work, program.memory("scratch", room * threads), room,
            rows, live, shape.hidden, program.mlp, shape.q_heads, shape.kv_heads, shape.head_dim, threads,
        )  # fmt: skip
        match_torch_threads()
        layers_kernel(frame.ctypes.data, len(self._cuts), program.eps, program.scale, hidden.dtype == torch.bfloat16)
        del turned  # its addresses were in `places`
        return x[:live]

    def _note(self, segment: Segment, layer: int, reading: "Reading") -> None:
        """Where a row's unit goes, how it is rotated, what it reads; then let the keep policy evict: nothing moves."""
        sequence, cache = segment.sequence, segment.sequence.caches[layer]
        keys, values, stride, size = cache.slab.place
        at = (cache.stop - 1 - cache.memory.offset) * size
        turned = limited = 0
        if self._program.rotated[layer]:
            position = cache.length - 1 if cache.compact else segment.first
            limit = next((run.limit for run in reading.runs if run.limit is not None), None)
            turned = self._rope(sequence, position)
            limited = -1 if limit is None else self._rope(sequence, min(position, limit))
        self._places.append((keys + at, values + at, stride, turned, turned, limited, limited))
        sequence.stats.units_read += sequence.shape.kv_heads * sum(run.units for run in reading.runs)
        sequence.read_less |= reading.less
        if layer + 1 == len(sequence.caches) or sequence.caches[layer + 1] is not cache:
            sequence.plan.keep.evict(cache, sequence.window(sequence.shape.windows[layer]))

    def _rope(self, sequence: Sequence, position: int) -> int:
        return self._ropes.setdefault((id(sequence.frequencies), position), len(self._ropes))

    def _turned(self, live: int) -> tuple[list[Tensor], np.ndarray]:
        """cos and sin of all rope positions, to be kept while the kernel runs, and the places with their addresses."""
        program, kept = self._program, []
        address = {kind: np.zeros((2, len(self._ropes) + 1), dtype=np.int64) for kind in program.rotary.kinds}
        for frequencies in {
            id(each.sequence.frequencies): each.sequence.frequencies for each in self._segments
        }.values():
            ropes = {position: at for (owner, position), at in self._ropes.items() if owner == id(frequencies)}
            positions = torch.tensor([*ropes], device=program.device)
            for kind, pair in program.rotary.tables(frequencies, positions).items():
                for side, table in enumerate(each[0].contiguous() for each in pair):
                    kept.append(table)
                    first, row = table.data_ptr(), table.stride(0) * table.itemsize
                    address[kind][side, [*ropes.values()]] = first + row * np.arange(len(ropes))
        places = np.array(self._places, dtype=np.int64).reshape(-1, live, t.PLACE)
        for layer, mine in enumerate(places, self._first):
            if program.rotated[layer]:
                cos, sin = address[program.rope_kinds[layer]]
                for field, known in ((t.COS, cos), (t.SIN, sin), (t.LIMITED_COS, cos), (t.LIMITED_SIN, sin)):
                    mine[:, field] = known[mine[:, field]]  # the last, -1, is 0
        return kept, places

    def _read(self, found: list[list[Run]]) -> None:
        """Cut the runs of a layer, as they are cut wherever they are as long, and say where the pieces lie."""
        flat = [run for runs in found for run in runs]
        key = tuple(tuple((run.units, run.limit is not None) for run in runs) for runs in found)
        cut = cut_of(key, self._program.shape.kv_heads, parts_of_work())
        keys, values, stride, size = np.array([run[:4] for run in flat], dtype=np.int64).T
        at = cut.head * stride[cut.run] + cut.start * size[cut.run]
        pieces = cut.told.copy()
        pieces[:, t.RUN_KEYS], pieces[:, t.RUN_VALUES] = keys[cut.run] + at, values[cut.run] + at
        self._runs.append(pieces)
        self._cuts.append(cut)


@functools.lru_cache(maxsize=256)
def cut_of(rows: tuple[tuple[tuple[int, bool], ...], ...], kv_heads: int, threads: int) -> Cut:
    """Cut runs, (units, whether they are limited) of each row, so that every thread reads as many units."""
    share = -(-kv_heads * sum(units for runs in rows for units, _ in runs) // threads)
    pieces: list[tuple[int, int, int, int, int, bool]] = []  # run, head, first unit, reader, units, limited
    bounds, heads, filled, first = [0], [0], 0, 0
    for row, runs in enumerate(rows):
        for head in range(kv_heads):
            for number, (units, limited) in enumerate(runs):
                start = 0
                while start < units:
                    left = units - start
                    take = left if len(bounds) == threads or left <= share - filled or left < WHOLE else share - filled
                    pieces.append((first + number, head, start, row * kv_heads + head, take, limited))
                    start, filled = start + take, filled + take
                    if filled >= share and len(bounds) < threads:
                        bounds.append(len(pieces))
                        filled = 0
            heads.append(len(pieces))
        first += len(runs)
    bounds += [len(pieces)] * (threads + 1 - len(bounds))
    table = np.array(pieces, dtype=np.int64)
    told = np.zeros((len(pieces), t.RUN), dtype=np.int64)
    told[:, [t.READER, t.UNITS, t.LIMITED]] = table[:, 3:]
    return Cut(table[:, 0], table[:, 1], table[:, 2], told, np.array(bounds), np.array(heads))


def _takes(segment: Segment, cache: LayerCache, layer: int) -> bool:
    """Whether a row's attention in a layer is nobody's business but its own, and its unit is held like any other."""
    sequence = segment.sequence
    keep, scored = sequence.plan.keep, sequence.plan.keep.scores_units(sequence.shape.windows[layer])
    return not (
        not sequence.plan.store.identity
        or not cache.rotated
        or cache.norms is not None
        or layer in sequence.signals[True]
        or layer in sequence.projections
        or layer in sequence.transient
        or (scored and keep.voters(segment.first, sequence.prompt) is not None)
        or (scored and sequence.scorer is not None and sequence.evictions_ahead(layer))
    )


def _reading(segment: Segment, cache: LayerCache, layer: int, *, rotated: bool) -> Reading | None:
    """What a row reads in a layer where its unit has just come; None where that is not known, or not all of a run."""
    sequence, window = segment.sequence, segment.sequence.shape.windows[layer]
    reader = sequence.reader
    spans = sequence.plan.keep.spans(cache, 1, segment.first, segment.positions, window)
    units = sum(span.stop - span.start for span in spans)
    if any(span.window is not None or span.past is None for span in spans) or not reader.foreseen(layer, units):
        return None
    if reader.narrows:
        row = _row(segment, cache, layer, window)
        views = reader.narrow(row, [view_of(segment, cache, span, fresh=1) for span in spans])
        if any(view.window is not None or view.past is None for view in views):
            return None
        runs = [run for view in views if view.units for run in _runs_of_view(view)]
    else:
        runs = [
            Run(keys + first * size, values + first * size, stride, size, last - first, span.query_limit)
            for span in spans
            for slab, first, last in cache.memory.pieces(span.start, span.stop)
            for keys, values, stride, size in (slab.place,)
            if last > first
        ]
    if not rotated:  # then nothing is rotated another way
        runs = [run._replace(limit=None) for run in runs]
    return Reading(runs, sum(run.units for run in runs) < units)


def _runs_of_view(view: View) -> list[Run]:
    found = []
    for keys, values in view.runs:
        stride, size = keys.stride(0) * keys.itemsize, keys.stride(1) * keys.itemsize
        found.append(Run(keys.data_ptr(), values.data_ptr(), stride, size, keys.shape[1], view.query_limit))
    return found


def _row(segment: Segment, cache: LayerCache, layer: int, window: int | None) -> Row:
    """The row, for a read policy that has said it needs no more of it."""

    def unknown(*_: Any) -> Any:
        raise TypeError("a layer that is foreseen has no queries")

    ordered = not segment.sequence.plan.compute.revives
    return Row(
        layer=layer, position=segment.first, window=window, appended=cache.appended, dropped=cache.dropped,
        ordered=ordered, query=unknown, match=unknown, keys=unknown,
    )  # fmt: skip
