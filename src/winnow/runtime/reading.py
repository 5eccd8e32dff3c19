"""What the rows of a decode step read in layers that are yet to be computed, as addresses for the kernel of few rows.

It is found beforehand: as runs of units, as the numbers of units in a run, or as pages or units, of which the row's own
query then chooses. Where positions have to be compared there is no answer, and the layer is not taken with others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from winnow.cache.layer import LayerCache
from winnow.cache.memory import Slab
from winnow.cache.pattern import Span
from winnow.cache.quantized import QuantizedSlab
from winnow.cache.ragged import RaggedSlab
from winnow.cache.run import Units
from winnow.cache.view import View
from winnow.kernels.floats import floats
from winnow.policies.read.base import Copies, Pages, Ranked, Row
from winnow.runtime.segment import Segment
from winnow.runtime.view import view_of

VOTES = 2**22  # about how many logits a call hands over at most


class Run(NamedTuple):
    """Units that a row reads: in each of some layers the addresses of the first key and value, the bytes from one KV
    head to the next, and how many units; bytes from one unit to the next.

    limit: the rope position that its queries are rotated at here, where that is less than the row's own. numbers: the
    address of [kv_heads, units] int64, ascending, which units from those first ones on they are, and `within` which
    bounds: others of these lie elsewhere; 0: one after the other. kept: where the logits of the first unit go, and
    the bytes from one query head to the next and from one layer to the next; 0 for nowhere. forms: in each layer the
    address of what says how units are held as codes, of which the first is in slot `first`, and keys and values are 0;
    None: they are not. own: whether the units are those of the rows that read them, each up to its own. missing: in
    each layer how many of the first units each KV head does not have, where they differ in that, and `heads`, [layers,
    kv_heads]: the bytes from those addresses to where the head's own first unit would be.
    """

    keys: np.ndarray
    values: np.ndarray
    strides: np.ndarray
    units: tuple[int, ...]
    size: int
    limit: int | None
    numbers: int = 0
    within: tuple[int, int] = (0, 0)
    kept: tuple[int, int, int] = (0, 0, 0)
    forms: np.ndarray | None = None
    first: int = 0
    own: bool = False
    missing: tuple[tuple[int, ...], ...] = ()
    heads: np.ndarray | None = None

    def split(self, rows: int) -> tuple["Run", "Run"]:
        """What was there before the last `rows` units, and these."""
        units = tuple(each - rows for each in self.units)
        before, size = self._replace(units=units), np.array(units) * self.size
        own = (rows,) * len(units)
        return before, self._replace(keys=self.keys + size, values=self.values + size, units=own, own=True)

    def apart(self, units: int, numbers: int, first: int) -> "Run":
        """`units` units of which the numbers are told instead of all, this run's being those from `first` on."""
        back = first * self.size
        return self._replace(
            keys=self.keys - back, values=self.values - back, units=(units,) * len(self.units), numbers=numbers,
            within=(first, first + self.units[0]), first=self.first - first,
        )  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """What a row's query chooses in some layers: `count` pages or units, the numbers of its units into `index`,
    [kv_heads, units] int64. facts: [layers, kv_heads, CHOICE], see `kernels/layers/tables.py`; held: what has to live
    on for them."""

    facts: np.ndarray
    held: list[Any]
    count: int
    index: np.ndarray


class Told(NamedTuple):
    """What a reader wants to be told of a row's attention: logits [q_heads, units], of all its views."""

    row: Row
    views: list[View]
    logits: Tensor


class Reading(NamedTuple):
    """What a row reads in some layers; units: over all of them and all KV heads, what a choice reads besides counted as
    the units that it is as large as; less: not all that is kept; votes: the logits of a row that votes, [layers,
    q_heads, units], where they go."""

    runs: list[Run]
    units: int
    less: bool
    choice: Choice | None = None
    told: Told | None = None
    votes: Tensor | None = None


def kind_of(segment: Segment, layer: int) -> tuple[object, ...] | None:
    """What says where a row's unit goes in a layer and what the row reads there, but for addresses: rows read alike in
    layers of which it is the same. None where the row's attention is not its own business alone, or its unit is not
    held like any other."""
    sequence = segment.sequence
    cache, pattern = sequence.caches[layer], sequence.patterns[layer]
    score, votes = sequence.score if pattern.held else None, _votes(segment, layer)
    told = sequence.scorer is not None or sequence.queries is not None  # of projections
    if (
        not cache.rotated
        or sequence.plan.read.reach is not None
        or sequence.plan.read.by_rows
        or not cache.memory.addressed
        or (layer in sequence.gates.fills and sequence.gates.fills[layer].all_rows)
        or layer in sequence.gates.self_only
        or (votes and (segment.rows > 1 or sequence.reader.selects))
        or (layer in segment.ranked_in and (sequence.windows[layer] is not None or not segment.ranks_alone))
        or (told and score is not None and sequence.evictions_ahead(layer))
    ):
        return None
    window = sequence.shape.windows[layer]
    alone = None if pattern.told_by_slots(cache, window) else layer
    known = cache.appended, cache.dropped, sequence.reader.alike(layer)
    # A row that reads all of what is held, and says nothing of it, may read other numbers of units in each layer.
    all_alone = pattern.held and not sequence.reader.selects and not votes
    lies = cache.lying if all_alone else cache.standing
    return alone, known, pattern, window, sequence.shape.rotations[layer], lies


def reading_of(segment: Segment, caches: list[LayerCache], layer: int, *, rotated: bool) -> Reading | None:
    """What the rows read in layers from `layer` on where its unit has just come, and which are of the same kind;
    None where that is not known, or not all of a run."""
    sequence, cache = segment.sequence, caches[0]
    window = sequence.shape.windows[layer]
    spans = sequence.patterns[layer].spans(cache, segment.rows, segment.first, segment.positions, window)
    if any(span.window is not None or span.past is None for span in spans):
        return None
    found: Reading | None
    if sequence.reader.selects:
        found = _selected(segment, caches, layer, [view_of(segment, cache, span, fresh=1) for span in spans])
    else:
        stops = [each.stop for each in caches] if sequence.patterns[layer].held else None
        runs = [run for span in spans for run in _runs_of_span(caches, span, stops)]
        units = sum(sequence.shape.kv_heads * sum(run.units) - sum(map(sum, run.missing)) for run in runs)
        votes = None
        if _votes(segment, layer):
            votes = floats(len(caches), sequence.shape.q_heads, sum(run.units[0] for run in runs))
            if any(run.missing for run in runs):
                votes.fill_(float("-inf"))
            runs = [*_kept(runs, votes)]
        found = Reading(runs, units, less=False, votes=votes)
    if found is None or rotated:
        return found
    return found._replace(runs=[run._replace(limit=None) for run in found.runs])  # nothing is rotated another way


def most_layers(segment: Segment, layer: int) -> int:
    """How many layers from `layer` on may be taken at once, so that logits of votes do not fill the memory."""
    shape, held = segment.sequence.shape, segment.sequence.caches[layer].length + segment.rows
    return max(1, VOTES // (shape.q_heads * held)) if _votes(segment, layer) else shape.layers


def _votes(segment: Segment, layer: int) -> bool:
    """Whether rows of a segment say by their attention which units of a layer are to stay."""
    sequence = segment.sequence
    if sequence.score is None or not sequence.patterns[layer].held:
        return False
    first = sequence.plan.keep.voting_from(segment.first, sequence.prompt)
    return first is not None and segment.before(first) < segment.rows


def of_rows(segment: Segment, reading: Reading) -> list[Run]:
    """What the rows of a segment read together: all that was there, and of their own units each those up to its own."""
    if segment.rows == 1:
        return reading.runs
    *others, last = reading.runs
    return [run for run in (*others, *last.split(segment.rows)) if any(run.units)]


def _selected(segment: Segment, caches: list[LayerCache], layer: int, seen: list[View]) -> Reading | None:
    """What a row's reader selects of what it may see; the rest as of `reading_of`."""
    row, runs, choice, besides = _row(segment, caches[0], layer), [], None, 0
    answer = segment.sequence.reader.select(row, seen)
    for each in answer:
        view = each if isinstance(each, View) else each.view
        if view.window is not None or view.past is None:
            return None
        if isinstance(each, Copies):
            runs.append(_run_of([each.of(at) for at in range(layer, layer + len(caches))], view.query_limit))
            continue
        found = list(_runs_of_view(caches, view))
        if isinstance(each, (Pages, Ranked)):
            if view.query_limit is not None:  # queries are rotated another way there
                return None
            choice, besides = _choice(each, caches, layer), each.besides
            firsts = accumulate((run.units[0] for run in found), initial=0)
            address = choice.index.ctypes.data
            found = [run.apart(each.units, address, first) for run, first in zip(found, firsts, strict=False)]
        runs += found
    read = sum(each.units for each in answer)
    less = read < sum(view.units for view in seen)
    heads = len(caches) * segment.sequence.shape.kv_heads
    if choice is not None:
        return Reading(runs, heads * (read + besides), less, choice)
    views = [each if isinstance(each, View) else each.view for each in answer]
    wanted = segment.sequence.reader.wants(row, views)
    if wanted is None:
        return Reading(runs, heads * read, less)
    if wanted != "logits" or any(run.numbers for run in runs):
        return None
    assert len(caches) == 1  # nothing is wanted of layers that are alike
    logits = floats(1, segment.sequence.shape.q_heads, read)
    return Reading([*_kept(runs, logits)], heads * read, less, told=Told(row, views, logits[0]))


def _choice(asked: Pages | Ranked, caches: list[LayerCache], layer: int) -> Choice:
    """What a row chooses among in layers from `layer` on, in which units stand alike."""

    def keys(cache: LayerCache, start: int, stop: int) -> Tensor:
        first = _slot(asked.view, cache)
        return cache.memory.read(first + start, first + stop)[0]

    facts, held = zip(*(asked.facts(at, partial(keys, cache)) for at, cache in enumerate(caches, layer)), strict=True)
    index = np.empty((asked.view.kv_heads, asked.units), dtype=np.int64)
    return Choice(np.stack(facts), [*held], asked.count, index)


def _kept(runs: list[Run], logits: Tensor) -> Iterator[Run]:
    """Runs whose logits go side by side into `logits`, [layers, q_heads, units]."""
    first, (layer, head, _) = logits.data_ptr(), logits.stride()
    for run in runs:
        yield run._replace(kept=(first, head * logits.itemsize, layer * logits.itemsize))
        first += run.units[0] * logits.itemsize


def _runs_of_span(caches: list[LayerCache], span: Span, stops: list[int] | None = None) -> Iterator[Run]:
    """The runs of memory that a span lies in, in every one of some caches in which units stand alike.

    stops: the slots behind it, where they are not the same in all of them.
    """
    ends = stops or [span.stop] * len(caches)
    for alike in zip(
        *(cache.memory.pieces(span.start, end) for cache, end in zip(caches, ends, strict=True)), strict=True
    ):
        units = tuple(last - first for _, first, last in alike)
        if not any(units):
            continue
        if ragged := [slab for slab, _, _ in alike if isinstance(slab, RaggedSlab)]:
            yield _ragged_run(ragged, span)
            continue
        forms = [slab.facts.ctypes.data for slab, _, _ in alike if isinstance(slab, QuantizedSlab)]
        if forms:
            nowhere, told = np.zeros(len(caches), dtype=np.int64), np.array(forms, dtype=np.int64)
            yield Run(nowhere, nowhere, nowhere, units, 0, span.query_limit, forms=told, first=alike[0][1])
            continue
        slabs = np.array([(*slab.place, first) for slab, first, _ in alike if isinstance(slab, Slab)], dtype=np.int64)
        size = int(slabs[0, 3])
        at = slabs[:, 4] * size
        yield Run(slabs[:, 0] + at, slabs[:, 1] + at, slabs[:, 2], units, size, span.query_limit)


def _ragged_run(slabs: list[RaggedSlab], span: Span) -> Run:
    """The same of all that is in slabs of which heads hold different numbers of units."""
    places = np.array([slab.place for slab in slabs], dtype=np.int64)
    size = int(places[0, 2])
    return Run(
        places[:, 0], places[:, 1], np.zeros_like(places[:, 0]), tuple(slab.capacity for slab in slabs), size,
        span.query_limit, missing=tuple(slab.missing for slab in slabs),
        heads=size * np.array([slab.firsts for slab in slabs], dtype=np.int64),
    )  # fmt: skip


def _runs_of_view(caches: list[LayerCache], view: View) -> Iterator[Run]:
    """The same of a view of the first of these caches, or of copies that only its layer has."""
    if view.place is None:
        yield from (_run_of([(run.keys, run.values)], view.query_limit) for run in view.runs)
        return
    start, number = _slot(view, caches[0]), 0
    held = sum(run.units for run in view.runs)
    for run in _runs_of_span(caches, Span(start, start + held, view.past, query_limit=view.query_limit)):
        yield run if view.index is None else run.apart(view.units, view.index.data_ptr(), number)
        number += run.units[0]


def _run_of(copies: Sequence[Units], limit: int | None) -> Run:
    """The run that copies of as many units are, one in every layer."""
    keys, _ = copies[0]
    first, second = np.array([[each.data_ptr() for each in both] for both in copies], dtype=np.int64).T
    strides, units = np.full(len(copies), keys.stride(0) * keys.itemsize), (keys.shape[1],) * len(copies)
    return Run(first, second, strides, units, keys.stride(1) * keys.itemsize, limit)


def _slot(view: View, cache: LayerCache) -> int:
    """The first slot of a view that lies in a cache."""
    assert view.place is not None
    assert not view.gathered
    return view.place if view.place < cache.head else view.place - cache.head + cache.start


def _row(segment: Segment, cache: LayerCache, layer: int) -> Row:
    """The row, before the layer is computed."""

    def unknown(*_: Any) -> Any:
        raise TypeError("what a row attends with is not known before its layer is computed")

    ordered = not segment.sequence.gates.revives
    return Row(
        layer=layer, position=segment.first, rows=1, window=segment.sequence.shape.windows[layer], decode=True,
        last=True, appended=cache.appended, dropped=cache.dropped, ordered=ordered, match=unknown,
        ready=lambda view: view, nearer=unknown,
    )  # fmt: skip
