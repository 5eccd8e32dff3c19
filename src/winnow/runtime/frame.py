"""What one call of the kernel of few rows is told: where rows leave their units, and what they read, layer by layer.

A layer of which a reader wants to be told is the last of a call. One of which it is not known what rows read
(`reading.py`) is not among those noted.
"""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from winnow.cache.layer import LayerCache, Reserved
from winnow.cache.mapped import fetch
from winnow.kernels.launch import parts_of_work
from winnow.kernels.layers import tables as t
from winnow.policies.read.base import Observed
from winnow.runtime.few import FewRows, Reads
from winnow.runtime.projected import match
from winnow.runtime.reading import VOTES, Reading, Run, kind_of, most_layers, of_rows, reading_of
from winnow.runtime.segment import Segment
from winnow.runtime.sequence import Sequence
from winnow.runtime.view import mean_over_heads, of_seen, side_by_side, view_of

if TYPE_CHECKING:
    from winnow.runtime.program import Program

WHOLE = 128  # a run of fewer units is read by one thread


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
        # Per group of layers in which rows read alike: [layers, rows, t.PLACE] with ropes by number, and [pieces of all
        # layers, t.RUN]; per layer how what is read is cut.
        self._places: list[np.ndarray] = []
        self._runs: list[np.ndarray] = []
        self._cuts: list[Cut] = []
        self._choices: list[np.ndarray] = []  # [layers, rows, kv_heads, t.CHOICE]
        self._found: list[tuple[Segment, range, Reading]] = []

    @property
    def ends(self) -> bool:
        """Whether the layer noted last is the last of the call: what rows read above it takes what readers are to be
        told of it, or the logits of votes are many already."""
        readings = [reading for *_, reading in self._found]
        votes = sum(0 if reading.votes is None else reading.votes.numel() for reading in readings)
        return votes >= VOTES or any(reading.told is not None for reading in readings)

    def add(self, layer: int, last: int) -> int:
        """Note what rows read in the layers from `layer` on, up to `last`, in which they read alike, their own units
        included; returns how many. 0: in this one it is not known, and nothing has changed."""
        kinds = [kind_of(segment, layer) for segment in self._segments]
        if None in kinds:
            return 0
        last = min([last, *(layer + most_layers(segment, layer) for segment in self._segments)])
        stop = layer + 1
        while stop < last and all(
            kind_of(segment, stop) == kind for segment, kind in zip(self._segments, kinds, strict=True)
        ):
            stop += 1
        found: list[Reading] = []
        begun: list[tuple[LayerCache, Reserved]] = []
        for segment in self._segments:
            caches = segment.sequence.caches[layer:stop]
            first = segment.first if segment.consecutive else None
            places = segment.first if segment.rows == 1 else segment.positions.numpy()
            begun += [(cache, cache.reserve(places, first)) for cache in caches]
            if (reading := reading_of(segment, caches, layer, rotated=self._program.rotated[layer])) is None:
                for cache, before in begun:
                    cache.give_back(before)
                return 0
            found.append(reading)
        pairs = [*zip(self._segments, found, strict=True)]
        self._places.append(np.concatenate([self._note(each, range(layer, stop), read) for each, read in pairs], 1))
        self._read([(each.rows, of_rows(each, read)) for each, read in pairs])
        self._choices.append(np.concatenate([self._chosen(each, stop - layer, read) for each, read in pairs], 1))
        self._found += [(each, range(layer, stop), read) for each, read in pairs]
        return stop - layer

    def fetch(self) -> None:
        """Bring the layers noted into memory, all of them at once, where they lie in files."""
        fetch(
            (segment.sequence.caches[layer], reading.less)
            for segment, layers, reading in self._found
            for layer in layers
        )

    def run(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] through the layers noted."""
        self._taken = FewRows(self._program, hidden)
        turned, places = self._turned(len(hidden))
        pieces = np.array([len(cut.run) for cut in self._cuts])
        offsets = (np.cumsum(pieces) - pieces)[:, None]
        runs = np.concatenate(self._runs)
        shares, heads = (np.stack([getattr(cut, each) for cut in self._cuts]) + offsets for each in ("bounds", "heads"))
        choices = np.concatenate(self._choices)
        asked = int(choices[..., t.ASKED].max())
        rows = int(runs[:, t.READERS].max())
        reads = Reads(places, runs, shares, heads, choices if asked else None, int(pieces.max()), rows, asked)
        self._taken.take(self._first, len(pieces), t.BEFORE + t.ATTENTION + t.AFTER, reads)
        del turned  # its addresses were in `places`
        return self._taken.hidden

    def tell(self) -> None:
        """After `run`: count the votes of rows, and tell the readers what they wanted to know of the last layer."""
        for segment, layers, reading in self._found:
            if reading.votes is not None:
                _vote(segment.sequence, layers, reading.votes.softmax(-1))
            if (told := reading.told) is not None:
                logits = told.logits.split([view.units for view in told.views], 1)
                observed = Observed(segment.positions, logits=[*logits])
                segment.sequence.reader.observe(told.row, told.views, observed)

    def rank(self, segment: Segment) -> Tensor:
        """After `run`: how much the last row of a segment attends to each token in the last layer, see `Entrance`."""
        program, layer = self._program, self._first + len(self._cuts) - 1
        cache, window = segment.sequence.caches[layer], program.shape.windows[layer]
        pattern = segment.sequence.patterns[layer]
        spans = pattern.spans(cache, segment.rows, segment.first, segment.positions, window)
        views = [view_of(segment, cache, span, fresh=segment.rows) for span in spans]
        query = self._taken.projections[0][segment.stop - 1]
        facts, position = program.logit_facts(layer), segment.positions[-1]
        logits = torch.cat([of_seen(match(query, view.keys, *facts), view, position) for view in views], 1)
        return mean_over_heads(logits.softmax(-1), side_by_side([view.positions for view in views]), segment.known)

    def _note(self, segment: Segment, layers: range, reading: Reading) -> np.ndarray:
        """Where units go in some layers, how rows are rotated, what they read: [layers, rows, t.PLACE], ropes by
        number, -1 for none. Then what no later row may see is dropped: nothing moves."""
        sequence, rows = segment.sequence, segment.rows
        caches = [sequence.caches[layer] for layer in layers]
        slabs = np.array([(*each.slab.place, each.stop - rows - each.memory.offset) for each in caches], dtype=np.int64)
        places = np.empty((len(layers), rows, t.PLACE), dtype=np.int64)
        at = (slabs[:, 4:] + np.arange(rows)) * slabs[0, 3]
        places[:, :, [t.KEYS, t.VALUES]] = slabs[:, None, :2] + at[..., None]
        places[:, :, t.STRIDE] = slabs[:, None, 2]
        places[:, :, t.COS :] = self._ropes_of(segment, caches, layers.start, reading)
        if segment.decode:
            sequence.stats.units_read += reading.units
            sequence.read_less |= reading.less
        for layer in layers:
            sequence.leave(layer)
        return places

    def _ropes_of(self, segment: Segment, caches: list[LayerCache], layer: int, reading: Reading) -> np.ndarray:
        """By which ropes rows are rotated in some layers from `layer` on: [layers or 1, rows, 4]."""
        sequence, rows = segment.sequence, segment.rows
        if not self._program.rotated[layer]:
            return np.zeros((1, rows, 4), dtype=np.int64)
        limit = next((run.limit for run in reading.runs if run.limit is not None), None)
        positions = [[segment.first] if rows == 1 else segment.positions.tolist()]
        if caches[0].compact:
            positions = [[each.length - rows + row for row in range(rows)] for each in caches]
        turned = [[self._rope(sequence, place) for place in row] for row in positions]
        limited = [
            [-1 if limit is None else self._rope(sequence, min(place, limit)) for place in row] for row in positions
        ]
        return np.stack((turned, turned, limited, limited), -1)

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

    def _read(self, found: list[tuple[int, list[Run]]]) -> None:
        """Cut the runs of a group of layers, which so many rows read together, and say where the pieces lie in each."""
        flat = [run for _, runs in found for run in runs]
        layers, kv_heads = len(flat[0].keys), self._program.shape.kv_heads
        alike = all(len({*run.units}) == 1 and len({*run.missing}) < 2 for run in flat)
        cuts = [_cut_of(found, at, kv_heads) for at in range(1 if alike else layers)] * (layers if alike else 1)
        number, head, start = (
            np.concatenate([getattr(cut, name) for cut in cuts]) for name in ("run", "head", "start")
        )
        layer = np.repeat(np.arange(layers), [len(cut.run) for cut in cuts])
        told = np.array([(run.size, run.units[0], run.numbers, *run.within, *run.kept) for run in flat], dtype=np.int64)
        size, units, numbers, low, high, kept, kept_row, kept_layer = told[number].T
        heads = np.stack(
            [run.strides[:, None] * np.arange(kv_heads) if run.heads is None else run.heads for run in flat]
        )
        at = heads[number, layer, head] + np.where(numbers, 0, start * size)
        pieces = np.concatenate([cut.told for cut in cuts])
        pieces[:, t.RUN_KEYS] = np.stack([run.keys for run in flat])[number, layer] + at
        pieces[:, t.RUN_VALUES] = np.stack([run.values for run in flat])[number, layer] + at
        pieces[:, t.INDEX] = np.where(numbers, numbers + 8 * (head * units + start), 0)
        pieces[:, t.LOW], pieces[:, t.HIGH] = low, high
        group = self._program.shape.q_heads // kv_heads
        kept = np.where(kept, kept + head * group * kept_row + 4 * start, 0)
        pieces[:, t.KEPT] = kept + kept_layer * layer
        pieces[:, t.KEPT_ROW] = kept_row
        pieces[:, t.ORDER] = np.array([run.own for run in flat])[number] * self._program.order.ctypes.data
        if any(run.forms is not None for run in flat):
            forms = [np.zeros_like(run.keys) if run.forms is None else run.forms for run in flat]
            first = np.array([run.first for run in flat])[number] + np.where(numbers, 0, start)
            pieces[:, t.RUN_FORM], pieces[:, t.FIRST] = np.stack(forms)[number, layer], first
        self._runs.append(pieces)
        self._cuts += cuts

    def _chosen(self, segment: Segment, layers: int, reading: Reading) -> np.ndarray:
        """What rows choose in some layers, [layers, rows, kv_heads, t.CHOICE]."""
        kv_heads, choice = self._program.shape.kv_heads, reading.choice
        told = np.zeros((layers, segment.rows, kv_heads, t.CHOICE), dtype=np.int64)
        if choice is not None:
            told[:, 0] = choice.facts
            told[..., t.COUNT] = choice.count
            told[:, 0, :, t.CHOSEN] = choice.index.ctypes.data + np.arange(kv_heads) * choice.index.strides[0]
        return told


def _vote(sequence: Sequence, layers: range, weights: Tensor) -> None:
    """Add the votes of a row to the scores of units. weights: how it attended, [layers, q_heads, units]."""
    assert sequence.score is not None
    for layer, each in zip(layers, weights, strict=True):
        votes = sequence.score.votes(each.view(1, sequence.shape.kv_heads, -1, each.shape[1]))
        sequence.caches[layer].add_scores(votes)


# Of so many rows together: units, whether they are limited, and how many of the first each KV head lacks.
Runs = tuple[int, tuple[tuple[int, bool, tuple[int, ...]], ...]]


def _cut_of(found: list[tuple[int, list[Run]]], layer: int, kv_heads: int) -> Cut:
    """How what is read is cut in one of some layers."""

    def told(run: Run) -> tuple[int, bool, tuple[int, ...]]:
        return run.units[layer], run.limit is not None, run.missing[layer] if run.missing else ()

    return cut_of(tuple((rows, tuple(map(told, runs))) for rows, runs in found), kv_heads, parts_of_work())


@functools.lru_cache(maxsize=256)
def cut_of(readers: tuple[Runs, ...], kv_heads: int, threads: int) -> Cut:
    """Cut runs so that every thread reads as many units, each as often as there are rows that read it."""
    every = sum(rows * (kv_heads * units - sum(missing)) for rows, runs in readers for units, _, missing in runs)
    share = -(-every // threads)
    pieces: list[tuple[int, int, int, int, int, bool, int]] = []  # run, head, first unit, reader, units, limited, rows
    bounds, heads, filled, first, row = [0], [0], 0, 0, 0
    for rows, runs in readers:
        for head in range(kv_heads):
            for number, (units, limited, missing) in enumerate(runs):
                start = missing[head] if missing else 0
                while start < units:
                    left, room = units - start, -(-(share - filled) // rows)
                    take = left if len(bounds) == threads or left <= room or left < WHOLE else room
                    pieces.append((first + number, head, start, row * kv_heads + head, take, limited, rows))
                    start, filled = start + take, filled + take * rows
                    if filled >= share and len(bounds) < threads:
                        bounds.append(len(pieces))
                        filled = 0
            heads.append(len(pieces))
        heads += [len(pieces)] * (kv_heads * (rows - 1))
        first, row = first + len(runs), row + rows
    bounds += [len(pieces)] * (threads + 1 - len(bounds))
    table = np.array(pieces, dtype=np.int64)
    told = np.zeros((len(pieces), t.RUN), dtype=np.int64)
    told[:, [t.READER, t.UNITS, t.LIMITED, t.READERS]] = table[:, 3:]
    return Cut(table[:, 0], table[:, 1], table[:, 2], told, np.array(bounds), np.array(heads))
