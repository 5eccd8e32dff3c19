"""Which cases of a product of parameters run every time; the others have the mark `full`."""

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import pytest

Case = tuple[Hashable, ...]


def covering(product: Sequence[Case], together: int = 2) -> list[Case]:
    """A few cases that have all that any case has in `together` of its places; the same ones for the same product.

    Greedy: each is the first of those with most that none before it has, and with the values that were taken least.
    """
    parts = {case: {*itertools.combinations(enumerate(case), together)} for case in product}
    left = set().union(*parts.values())
    taken: Counter[tuple[int, Hashable]] = Counter()
    chosen = []
    while left:
        chosen.append(max(parts, key=lambda case: (len(parts[case] & left), -sum(taken[at] for at in enumerate(case)))))
        left -= parts.pop(chosen[-1])
        taken.update(enumerate(chosen[-1]))
    return chosen


def marked(product: Sequence[Case], always: Sequence[Case]) -> list[object]:
    """Every case for `pytest.mark.parametrize`, those that are not in `always` with the mark `full`."""
    known = set(always)
    return [_case(case, case in known) for case in product]


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
        ],
    )


def _case(values: Sequence[Any], always: bool) -> object:
    spelled = ("+".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in values)
    return pytest.param(*values, marks=() if always else pytest.mark.full, id="-".join(spelled))
