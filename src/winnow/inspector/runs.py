"""Sets of token positions as runs, which is what makes a trace small: neighbours mostly share their fate."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

Runs = tuple[tuple[int, int], ...]  # [start, stop) pairs, ascending, neither empty nor touching


def runs_of(pieces: Iterable[Tensor]) -> Runs:
    """The positions in all `pieces` (int64 tensors of any shape, in any order, with repeats)."""
    flat = [piece.flatten().cpu() for piece in pieces]
    if not flat:
        return ()
    positions = torch.cat(flat).unique()  # ascending
    if not len(positions):
        return ()
    breaks = (positions.diff() > 1).nonzero().flatten()
    starts = torch.cat((positions[:1], positions[breaks + 1]))
    stops = torch.cat((positions[breaks], positions[-1:])) + 1
    return tuple(zip(starts.tolist(), stops.tolist(), strict=True))


def count(runs: Runs) -> int:
    """How many positions there are in `runs`."""
    return sum(stop - start for start, stop in runs)


def positions(runs: Runs) -> Iterator[int]:
    """The positions in `runs`, ascending."""
    for start, stop in runs:
        yield from range(start, stop)


def flip(runs: Runs, others: Runs) -> Runs:
    """The positions that are in exactly one of the two; flipping the same ones twice changes nothing."""
    # Membership turns over at the edges of runs; where both have one, it turns over twice.
    edges = sorted({edge for run in runs for edge in run} ^ {edge for run in others for edge in run})
    return tuple(zip(edges[::2], edges[1::2], strict=True))


def pack(runs: Runs) -> list[int]:
    """`[skip, take, skip, take, ...]` from position 0: ((3, 5), (9, 10)) is [3, 2, 4, 1]."""
    packed, at = [], 0
    for start, stop in runs:
        packed += [start - at, stop - start]
        at = stop
    return packed


def unpack(packed: Sequence[int]) -> Runs:
    """The runs that `pack` wrote. Raises ValueError where they are none."""
    if len(packed) % 2:
        raise ValueError(f"a set of positions has an odd number of entries: {list(packed)[:8]}")
    runs, at = [], 0
    for place in range(0, len(packed), 2):
        skip, take = packed[place], packed[place + 1]
        if not isinstance(skip, int) or not isinstance(take, int) or skip < (place > 0) or take < 1:
            raise ValueError(f"a set of positions holds the run {[skip, take]}")
        runs.append((at + skip, at + skip + take))
        at += skip + take
    return tuple(runs)
