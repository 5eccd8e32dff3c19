"""How llama.cpp writes the state of one sequence, so that one with many cells can be made without a prefill.

magic, sequence (uint32 each), streams (uint32, here 1), cells (uint32)
per cell: position (int32), sequences (uint32, here 1), sequence (int32)
transposed (uint32), layers (uint32)
per layer: type of keys (int32), bytes of a row (uint64), a row per cell
per layer: type of values (int32), bytes of a row (uint64), a row per cell; or, transposed (without flash
    attention): type (int32), bytes of an element (uint32), elements of a row (uint32), all cells of each element
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass

import beside  # noqa: F401
import numpy as np
from wire import Refused

F16 = 1  # ggml's number of the type
HEAD, CELL, CACHE, ROWS = "<IIII", "<iIi", "<II", "<iQ"
COLUMNS = "<iII"


@dataclass(frozen=True)
class Layout:
    """What a state of one cell tells. row: elements of one cell's keys, or values, in a layer."""

    magic: int
    sequence: int
    transposed: bool
    layers: int
    row: int


def read_layout(state: bytes) -> Layout:
    """Raises Refused where the state of one cell is not written as this file says."""
    magic, sequence, streams, cells = struct.unpack_from(HEAD, state)
    place = struct.calcsize(HEAD) + struct.calcsize(CELL)
    transposed, layers = struct.unpack_from(CACHE, state, place)
    kind, size = struct.unpack_from(ROWS, state, place + struct.calcsize(CACHE))
    layout = Layout(magic, sequence, bool(transposed), layers, size // 2)
    if (streams, cells, kind) != (1, 1, F16) or _size(layout, 1) != len(state):
        raise Refused("this llama.cpp writes its state in another way; use the version of llama-cpp-python in the docs")
    return layout


def filled_state(layout: Layout, units: Iterable[np.ndarray]) -> np.ndarray:
    """A state, as bytes, in which every layer has the units given for it, at the positions from 0 on.

    units: per layer [2, cells, row] float16, keys rotated as llama.cpp does.
    """
    given = list(units)
    cells = given[0].shape[1]
    state = np.empty(_size(layout, cells), np.uint8)
    about = np.zeros((cells, 3), np.int32)  # position, sequences, sequence
    about[:, 0], about[:, 1] = np.arange(cells), 1
    head = struct.pack(HEAD, layout.magic, layout.sequence, 1, cells)
    place = _write(state, 0, head, about, struct.pack(CACHE, layout.transposed, layout.layers))
    rows = struct.pack(ROWS, F16, 2 * layout.row)
    for keys, _ in given:
        place = _write(state, place, rows, keys)
    columns = struct.pack(COLUMNS, F16, 2, layout.row)
    for _, values in given:
        place = _write(state, place, columns, values.T) if layout.transposed else _write(state, place, rows, values)
    return state


def _write(state: np.ndarray, place: int, *parts: bytes | np.ndarray) -> int:
    """Put the parts one after another; returns the place after them."""
    for part in parts:
        data = (
            np.frombuffer(part, np.uint8)
            if isinstance(part, bytes)
            else np.ascontiguousarray(part).view(np.uint8).ravel()
        )
        state[place : place + data.size] = data
        place += data.size
    return place


def _size(layout: Layout, cells: int) -> int:
    head = struct.calcsize(HEAD) + cells * struct.calcsize(CELL) + struct.calcsize(CACHE)
    return head + 2 * layout.layers * (struct.calcsize(ROWS) + 2 * layout.row * cells)
