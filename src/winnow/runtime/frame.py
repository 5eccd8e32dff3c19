"""What one call of the kernel of few rows is told: where rows leave their units, and what they read, layer by layer.

What a row reads is found beforehand: as runs of units, as the numbers of units in a run, or as pages, of which its own
query then chooses. A layer in which a reader wants to be told of logits is the last of a call. Where a keep policy
wants to know how a row attended, or where positions have to be compared, the layer is not among those noted.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from winnow.cache.layer import LayerCache, Reserved
from winnow.cache.pattern import Span
from winnow.cache.view import View
from winnow.kernels.launch import parts_of_work
from winnow.kernels.layers import tables as t
from winnow.policies.read.base import Observed, Pages, Row
from winnow.runtime.few import FewRows, Reads
from winnow.runtime.projected import match
from winnow.runtime.segment import Segment
from winnow.runtime.sequence import Sequence
from winnow.runtime.view import mean_over_heads, side_by_side, view_of

if TYPE_CHECKING:
    from winnow.runtime.program import Program

WHOLE = 128  # a run of fewer units is read by one thread


class Run(NamedTuple):
    """Units that a row reads: in each of some layers the addresses of the first key and value; bytes from one KV head
    and from one unit to the next, and how many units.

    limit: the rope position that its queries are rotated at here, where that is less than the row's own. index: the
    address of [kv_heads, units] int64, which units from those first ones on they are; 0: one after the other. kept:
    where the logits of the first unit go, and the bytes from one query head to the next; 0 for nowhere.
    """

    keys: np.ndarray
    values: np.ndarray
    stride: int
    size: int
    units: int
    limit: int | None
    index: int = 0
    kept: tuple[int, int] = (0, 0)


class Choice(NamedTuple):
    """Pages of which a row's query chooses in some layers: `best_pages()` for each, with these bounds, into `index`,
    [kv_heads, count * page] int64."""

    bounds: list[Tensor]
    page: int
    count: int
    index: np.ndarray


class Told(NamedTuple):
    """What a reader wants to be told of a row's attention: logits [q_heads, units], of all its views."""

    row: Row
    views: list[View]
    logits: Tensor


class Reading(NamedTuple):
    """What a row reads in some layers; less: not all that is kept."""

    runs: list[Run]
    less: bool
    choice: Choice | None = None
    told: Told | None = None

    @property
    def units(self) -> int:
        """Per KV head, bounds of pages counted as the units that they are as large as."""
        return sum(run.units for run in self.runs) + (0 if self.choice is None else self.choice.bounds[0].shape[2])


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
    """The rows of some segments on their way through layers from `first` on."""

    def __init__(self, program: "Program", segments: list[Segment], first: int) -> None:
        self._program, self._segments, self._first = program, segments, first
        self._ropes: dict[tuple[int, int], int] = {}  # (which frequencies, rope position): its number
        # Per group of layers in which rows read alike: [layers, rows, t.PLACE] with ropes by number, [layers, pieces,
        # t.RUN], and how what is read is cut.
        self._places: list[np.ndarray] = []
        self._runs: list[np.ndarray] = []
        self._cuts: list[Cut] = []
        self._choices: list[np.ndarray] = []  # [layers, rows, kv_heads, t.CHOICE]
        self._found: list[tuple[Segment, Reading]] = []

    @property
    def ends(self) -> bool:
        """Whether readers are to be told of the layer noted last before what rows read above it is known."""
        return any(reading.told is not None for _, reading in self._found)

    def add(self, layer: int, last: int) -> int:
        """Note what rows read in the layers from `layer` on, up to `last`, in which they read alike, their own units
        included; returns how many. 0: in this one it is not known, and nothing has changed."""
        kinds = [_kind(segment, layer) for segment in self._segments]
        if None in kinds:
            return 0
        stop = layer + 1
        while stop < last and all(
            _kind(segment, stop) == kind for segment, kind in zip(self._segments, kinds, strict=True)
        ):
            stop += 1
        found: list[Reading] = []
        begun: list[tuple[LayerCache, Reserved]] = []
        for segment in self._segments:
            caches = segment.sequence.caches[layer:stop]
            places = segment.first if segment.rows == 1 else segment.positions.numpy()
            begun += [(cache, cache.reserve(places)) for cache in caches]
            if (reading := _reading(segment, caches, layer, rotated=self._program.rotated[layer])) is None:
                for cache, before in begun:
                    cache.give_back(before)
                return 0
            found.append(reading)
        pairs = [*zip(self._segments, found, strict=True)]
        self._places.append(np.concatenate([self._note(each, range(layer, stop), read) for each, read in pairs], 1))
        self._read([runs for each, read in pairs for runs in _of_rows(each, read)])
        self._choices.append(np.concatenate([self._chosen(each, stop - layer, read) for each, read in pairs], 1))
        self._found += pairs
        return stop - layer

    def run(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] through the layers noted."""
        self._taken = FewRows(self._program, hidden)
        turned, places = self._turned(len(hidden))
        layers = [len(each) for each in self._runs]  # of each group
        pieces = np.repeat([each.shape[1] for each in self._runs], layers)
        offsets = (np.cumsum(pieces) - pieces)[:, None]
        runs = np.concatenate([each.reshape(-1, t.RUN) for each in self._runs])
        shares = np.repeat([cut.bounds for cut in self._cuts], layers, 0) + offsets
        heads = np.repeat([cut.heads for cut in self._cuts], layers, 0) + offsets
        choices = np.concatenate(self._choices)
        pages = int(choices[..., t.PAGES].max())
        reads = Reads(places, runs, shares, heads, choices if pages else None, int(pieces.max()), pages)
        self._taken.take(self._first, len(pieces), t.BEFORE + t.ATTENTION + t.AFTER, reads)
        del turned  # its addresses were in `places`
        return self._taken.hidden

    def tell(self) -> None:
        """After `run`: tell the readers what they wanted to know of the last layer."""
        for segment, reading in self._found:
            if (told := reading.told) is not None:
                logits = told.logits.split([view.units for view in told.views], 1)
                observed = Observed(segment.positions, logits=[*logits])
                segment.sequence.reader.observe(told.row, told.views, observed)

    def rank(self, segment: Segment) -> Tensor:
        """After `run`: how much the last row of a segment attends to each token in the last layer, see `Entrance`."""
        program, layer = self._program, self._first + sum(map(len, self._runs)) - 1
        cache, window = segment.sequence.caches[layer], program.shape.windows[layer]
        pattern = segment.sequence.patterns[layer]
        spans = pattern.spans(cache, segment.rows, segment.first, segment.positions, window)
        views = [view_of(segment, cache, span, fresh=segment.rows) for span in spans]
        query = self._taken.projections[0][segment.stop - 1]
        logits = torch.cat([match(query, view.keys, *program.logit_facts(layer)) for view in views], 1)
        return mean_over_heads(logits.softmax(-1), side_by_side([view.positions for view in views]), segment.known)

    def _note(self, segment: Segment, layers: range, reading: Reading) -> np.ndarray:
        """Where units go in some layers, how rows are rotated, what they read: [layers, rows, t.PLACE], ropes by
        number, -1 for none. Then what no later row may see is dropped: nothing moves."""
        sequence, cache = segment.sequence, segment.sequence.caches[layers.start]
        slabs = np.array([sequence.caches[layer].slab.place for layer in layers], dtype=np.int64)
        stride, size = slabs[0, 2:]
        rows = segment.rows
        places = np.empty((len(layers), rows, t.PLACE), dtype=np.int64)
        at = cache.stop - rows - cache.memory.offset + np.arange(rows)
        places[:, :, [t.KEYS, t.VALUES]] = slabs[:, None, :2] + (at * size)[None, :, None]
        positions = [segment.first] if rows == 1 else segment.positions.tolist()
        limit = next((run.limit for run in reading.runs if run.limit is not None), None)
        for row, position in enumerate(positions):
            turned = limited = 0
            if self._program.rotated[layers.start]:
                place = cache.length - rows + row if cache.compact else position
                turned = self._rope(sequence, place)
                limited = -1 if limit is None else self._rope(sequence, min(place, limit))
            places[:, row, t.STRIDE :] = stride, turned, turned, limited, limited
        sequence.stats.units_read += len(layers) * sequence.shape.kv_heads * reading.units
        sequence.read_less |= reading.less
        for layer in layers:
            sequence.leave(layer)
        return places

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
        places = np.concatenate(self._places)
        kinds = program.rope_kinds[self._first : self._first + len(places)]
        for kind, (cos, sin) in address.items():
            mine = [layer for layer, its in enumerate(kinds) if its == kind]
            for field, known in ((t.COS, cos), (t.SIN, sin), (t.LIMITED_COS, cos), (t.LIMITED_SIN, sin)):
                places[mine, :, field] = known[places[mine, :, field]]  # the last, -1, is 0
        return kept, places

    def _read(self, found: list[list[Run]]) -> None:
        """Cut the runs of a group of layers, and say where the pieces lie in each."""
        flat = [run for runs in found for run in runs]
        key = tuple(tuple((run.units, run.limit is not None) for run in runs) for runs in found)
        cut = cut_of(key, self._program.shape.kv_heads, parts_of_work())
        told = np.array([(*run[2:5], run.index, *run.kept) for run in flat], dtype=np.int64)
        stride, size, units, index, kept, kept_row = told[cut.run].T
        at = cut.head * stride + np.where(index, 0, cut.start * size)
        pieces = np.repeat(cut.told[None], len(flat[0].keys), 0)
        pieces[:, :, t.RUN_KEYS] = np.stack([run.keys for run in flat], 1)[:, cut.run] + at
        pieces[:, :, t.RUN_VALUES] = np.stack([run.values for run in flat], 1)[:, cut.run] + at
        pieces[:, :, t.INDEX] = np.where(index, index + 8 * (cut.head * units + cut.start), 0)
        group = self._program.shape.q_heads // self._program.shape.kv_heads
        pieces[:, :, t.KEPT] = np.where(kept, kept + cut.head * group * kept_row + 4 * cut.start, 0)
        pieces[:, :, t.KEPT_ROW] = kept_row
        self._runs.append(pieces)
        self._cuts.append(cut)

    def _chosen(self, segment: Segment, layers: int, reading: Reading) -> np.ndarray:
        """What rows choose in some layers, [layers, rows, kv_heads, t.CHOICE]."""
        kv_heads, choice = self._program.shape.kv_heads, reading.choice
        told = np.zeros((layers, segment.rows, kv_heads, t.CHOICE), dtype=np.int64)
        if choice is None:
            return told
        first = np.array([(each.data_ptr(), *each.stride()[:2]) for each in choice.bounds], dtype=np.int64)
        bound, head = (first[:, [1, 2]] * choice.bounds[0].itemsize).T
        heads = np.arange(kv_heads)
        least = first[:, :1] + head[:, None] * heads
        told[:, 0, :, t.LEAST], told[:, 0, :, t.GREATEST] = least, least + bound[:, None]
        told[..., t.PAGES : t.CHOSEN] = choice.bounds[0].shape[2], choice.page, choice.count
        told[..., t.CHOSEN] = choice.index.ctypes.data + heads * choice.index.strides[0]
        return told


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


def _kind(segment: Segment, layer: int) -> tuple[object, ...] | None:
    """What says where a row's unit goes in a layer and what the row reads there, but for addresses: rows read alike in
    layers of which it is the same. None where the row's attention is not its own business alone, or its unit is not
    held like any other."""
    sequence = segment.sequence
    cache, pattern = sequence.caches[layer], sequence.patterns[layer]
    score = sequence.score if pattern.held else None
    if (
        not sequence.plan.store.identity
        or not cache.rotated
        or (layer in sequence.gates.fills and sequence.gates.fills[layer].all_rows)
        or layer in sequence.gates.self_only
        or (score is not None and sequence.plan.keep.voting_from(segment.first, sequence.prompt) is not None)
        or (sequence.scorer is not None and score is not None and sequence.evictions_ahead(layer))
    ):
        return None
    window = sequence.shape.windows[layer]
    alone = None if pattern.told_by_slots(cache, window) else layer
    known = cache.appended, cache.dropped, sequence.reader.alike(layer)
    return alone, known, pattern, window, sequence.shape.rotations[layer], cache.standing


def _reading(segment: Segment, caches: list[LayerCache], layer: int, *, rotated: bool) -> Reading | None:
    """What the last row reads in layers from `layer` on where its unit has just come, and which are of the same kind;
    None where that is not known, or not all of a run."""
    sequence, cache = segment.sequence, caches[0]
    window = sequence.shape.windows[layer]
    spans = sequence.patterns[layer].spans(cache, segment.rows, segment.first, segment.positions, window)
    units = sum(span.stop - span.start for span in spans)
    if any(span.window is not None or span.past is None for span in spans):
        return None
    if sequence.reader.selects:
        found = _selected(segment, caches, layer, [view_of(segment, cache, span, fresh=1) for span in spans], units)
    else:
        found = Reading([run for span in spans for run in _runs_of_span(caches, span)], less=False)
    if found is None or rotated:
        return found
    return found._replace(runs=[run._replace(limit=None) for run in found.runs])  # nothing is rotated another way


def _selected(segment: Segment, caches: list[LayerCache], layer: int, seen: list[View], units: int) -> Reading | None:
    """What a row's reader selects of what it may see, `units` per KV head; the rest as of `_reading`."""
    reader, row = segment.sequence.reader, _row(segment, caches[0], layer)
    views: list[View] = []
    runs: list[Run] = []
    choice = None
    for each in reader.select(row, seen):
        view = each.view if isinstance(each, Pages) else each
        if view.window is not None or view.past is None:
            return None
        found = [*_runs_of_view(caches, view)]
        if view is each:
            views.append(view)
        elif view.query_limit is not None:
            return None
        else:
            bounds = [each.bounds(at, partial(_keys, view, cache)) for at, cache in enumerate(caches, layer)]
            choice = Choice(bounds, each.page, each.count, np.empty((len(view.runs[0][0]), each.units), dtype=np.int64))
            found = [run._replace(units=each.units, index=choice.index.ctypes.data) for run in found]
        if len(found) > 1 and found[0].index:  # units that lie apart, and in memory that forks share
            return None
        runs += found
    less = sum(run.units for run in runs) < units
    if choice is not None or (wanted := reader.wants(row, views)) is None:
        return Reading(runs, less, choice)
    if wanted != "logits" or len(caches) > 1:
        return None
    told = Told(row, views, torch.empty(segment.sequence.shape.q_heads, sum(run.units for run in runs)))
    first, row_bytes = told.logits.data_ptr(), 4 * told.logits.shape[1]
    ends = accumulate(run.units for run in runs)
    kept = [(first + 4 * (end - run.units), row_bytes) for end, run in zip(ends, runs, strict=True)]
    return Reading([run._replace(kept=each) for run, each in zip(runs, kept, strict=True)], less, told=told)


def _keys(view: View, cache: LayerCache, start: int, stop: int) -> Tensor:
    """The keys of units [start, stop) of a view, in a layer in which units stand alike."""
    first = _slot(view, cache)
    return cache.memory.read(first + start, first + stop)[0]


def _slot(view: View, cache: LayerCache) -> int:
    assert view.place is not None
    return view.place if view.place < cache.head else view.place - cache.head + cache.start


def _runs_of_span(caches: list[LayerCache], span: Span) -> Iterator[Run]:
    """The runs of memory that a span lies in, in every one of some caches in which units stand alike."""
    pieces = [cache.memory.pieces(span.start, span.stop) for cache in caches]
    for number, (_, first, last) in enumerate(pieces[0]):
        slabs = np.array([each[number][0].place for each in pieces], dtype=np.int64)
        stride, size = (int(each) for each in slabs[0, 2:])
        if last > first:
            yield Run(
                slabs[:, 0] + first * size, slabs[:, 1] + first * size, stride, size, last - first, span.query_limit
            )


def _of_rows(segment: Segment, reading: Reading) -> Iterator[list[Run]]:
    """What each row reads: all that was there, and of the units of the segment's rows those up to its own."""
    *others, last = reading.runs
    for behind in reversed(range(segment.rows)):
        yield [*others, last._replace(units=last.units - behind)]


def _runs_of_view(caches: list[LayerCache], view: View) -> Iterator[Run]:
    """The runs of memory that a view lies in, in every one of some caches in which units stand alike."""
    if view.place is None or view.gathered:  # copies, of one layer
        for keys, values in view.runs:
            stride, size = keys.stride(0) * keys.itemsize, keys.stride(1) * keys.itemsize
            first, second = (np.array([each.data_ptr()], dtype=np.int64) for each in (keys, values))
            yield Run(first, second, stride, size, keys.shape[1], view.query_limit)
        return
    first = _slot(view, caches[0])
    lying = Span(first, first + sum(keys.shape[1] for keys, _ in view.runs), view.past, query_limit=view.query_limit)
    for run in _runs_of_span(caches, lying):
        yield run if view.index is None else run._replace(units=view.units, index=view.index.data_ptr())


def _row(segment: Segment, cache: LayerCache, layer: int) -> Row:
    """The row, before the layer is computed."""

    def unknown(*_: Any) -> Any:
        raise TypeError("what a row attends with is not known before its layer is computed")

    ordered = not segment.sequence.gates.revives
    return Row(
        layer=layer, position=segment.first, window=segment.sequence.shape.windows[layer], decode=True, last=True,
        appended=cache.appended, dropped=cache.dropped, ordered=ordered, match=unknown, ready=lambda view: view,
    )  # fmt: skip
