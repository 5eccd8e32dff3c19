"""The table of position sets of a trace's JSON: equal sets are written once, similar ones as what differs."""

from collections.abc import Sequence
from typing import Any

from winnow.inspector.runs import Runs, flip, pack, unpack

Written = list[int] | dict[str, Any]  # as `pack` writes a set, or {"like": an earlier set, "flip": what differs}
OVERHEAD = 6  # numbers that the keys of a dictionary are as long as


class SetTable:
    """The sets written so far, by index."""

    def __init__(self) -> None:
        self.written: list[Written] = []
        self._sets: list[Runs] = []
        self._index: dict[Runs, int] = {}

    def add(self, runs: Runs, *like: int) -> int:
        """The index of a set, which may be similar to those at the indices `like`."""
        if runs in self._index:
            return self._index[runs]
        shortest: Written = pack(runs)
        length = len(shortest)
        for other in like:
            differing = pack(flip(runs, self._sets[other]))
            if len(differing) + OVERHEAD < length:
                shortest, length = {"like": other, "flip": differing}, len(differing) + OVERHEAD
        self._index[runs] = len(self._sets)
        self._sets.append(runs)
        self.written.append(shortest)
        return self._index[runs]


def read_sets(written: Sequence[Written]) -> list[Runs]:
    """What `SetTable.written` holds. Raises ValueError where a set is none, or like one that is not before it."""
    sets: list[Runs] = []
    for entry in written:
        if not isinstance(entry, dict):
            sets.append(unpack(entry))
            continue
        other = entry["like"]
        if not isinstance(other, int) or not 0 <= other < len(sets):
            raise ValueError(f"set {len(sets)} is like set {other!r}, which is not before it")
        sets.append(flip(unpack(entry["flip"]), sets[other]))
    return sets
