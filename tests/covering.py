"""Which cases of a product of parameters run every time; the others have the mark `full`."""

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Any

import pytest

Case = tuple[Hashable, ...]
EVERY = True  # whether cases with the mark `full` are asked for; where they are not, none is made only to be left out


def covering(product: Sequence[Case], together: int = 2) -> list[Case]:
    """A few cases that have all that any case has in `together` of its places; the same ones for the same product."""
    return few(product, lambda case: itertools.combinations(enumerate(case), together), enumerate)


def few(
    product: Iterable[Case], shows: Callable[[Case], Iterable[Hashable]], values: Callable[[Case], Iterable[Hashable]]
) -> list[Case]:
    """A few cases that show all that any case shows.

    Greedy: each is the first of those that show most that none before it does, and with the values that were taken
    least.
    """
    parts = {case: {*shows(case)} for case in product}
    left = set().union(*parts.values())
    taken: Counter[Hashable] = Counter()
    chosen: list[Case] = []

    def worth(at: int, case: Case) -> tuple[int, int, int, Case]:
        return -len(parts[case] & left), sum(taken[each] for each in values(case)), at, case

    best = [worth(*each) for each in enumerate(parts)]
    heapify(best)
    while left:
        _, _, at, case = best[0]
        if (now := worth(at, case)) != best[0]:  # no case is ever worth more than it was
            heapreplace(best, now)
            continue
        chosen.append(heappop(best)[-1])
        left -= parts[case]
        taken.update(values(case))
    return chosen


def marked(product: Sequence[Case], always: Sequence[Case]) -> list[object]:
    """Every case for `pytest.mark.parametrize`, those that are not in `always` with the mark `full`."""
    known = set(always)
    return [_case(case, case in known) for case in product if EVERY or case in known]


def covered(*joined: tuple[Sequence[str], Sequence[Any]], together: int = 1, **axes: Iterable[Any]) -> Any:
    """Parametrise over a product, in which every time each value runs, or with together=2 every pair of values.

    joined: axes of several parameters, ("a", "b"), [(1, 2), (3, 4)].
    """
    lists = [list(values) for _, values in joined] + [[(value,) for value in values] for values in axes.values()]
    product = [*itertools.product(*(range(len(values)) for values in lists))]
    known = set(covering(product, together))
    names = [*itertools.chain(*(names for names, _ in joined)), *axes]
    return pytest.mark.parametrize(
        names,
        [
            _case([*itertools.chain(*(values[at] for values, at in zip(lists, case, strict=True)))], case in known)
            for case in product
            if EVERY or case in known
        ],
    )


def _case(values: Sequence[Any], always: bool) -> object:
    spelled = ("+".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in values)
    return pytest.param(*values, marks=() if always else pytest.mark.full, id="-".join(spelled))
