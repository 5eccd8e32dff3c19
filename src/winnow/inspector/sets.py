"""The table of position sets of a trace's JSON: equal sets are written once, similar ones as what differs."""

from collections.abc import Hashable, Sequence
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
        self._last: dict[Hashable, int] = {}

    def add(self, runs: Runs, key: Hashable, *others: Hashable) -> int:
        """The index of a set, which may be similar to those added last under its own key or others."""
        if runs not in self._index:
            like = sorted({self._last[each] for each in (key, *others) if each in self._last})
            self.written.append(self._shortest(runs, like))
            self._index[runs] = len(self._sets)
            self._sets.append(runs)
        self._last[key] = self._index[runs]
        return self._last[key]

    def _shortest(self, runs: Runs, like: Sequence[int]) -> Written:
        plain = pack(runs)
        flips = {other: pack(flip(runs, self._sets[other])) for other in like}
        nearest = min(flips, key=lambda other: len(flips[other]), default=None)
        if nearest is None or len(flips[nearest]) + OVERHEAD >= len(plain):
            return plain
        return {"like": nearest, "flip": flips[nearest]}


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
