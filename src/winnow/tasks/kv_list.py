"""Key-value listing: a JSON object of pairs fills the context; many keys are asked for in one question."""

from collections.abc import Sequence
from dataclasses import dataclass

from winnow.errors import InputError
from winnow.tasks.draw import Draw, DrawnTask
from winnow.tasks.example import Example
from winnow.tasks.fill import fill_with_records
from winnow.tasks.kv import SAMPLE, draw_pairs, json_object, pair, sample_pairs
from winnow.tasks.multi_needle import listed

Pair = tuple[str, str]


def listing(pairs: Sequence[Pair]) -> str:
    """The answer in the wanted form: the pairs as they stand in the object, a pair per line."""
    return ",\n ".join(pair(key, value) for key, value in pairs)


def question(keys: Sequence[str]) -> str:
    """The question; the answer lists the pairs in the order of `keys`."""
    quoted = listed([f'"{key}"' for key in keys])
    return f"What are the values of the keys {quoted} in the JSON object above? Repeat the pairs."


def place(targets: Sequence[Pair], depths: Sequence[float], others: Sequence[Pair]) -> list[Pair]:
    """`others` in their order, with each of `targets` after the share of them that its depth says."""
    ranked = [((index + 0.5) / max(1, len(others)), other) for index, other in enumerate(others)]
    ranked += zip(depths, targets, strict=True)
    return [each for _, each in sorted(ranked, key=lambda item: item[0])]


@dataclass(frozen=True)
class KeyValueList(DrawnTask):
    """Retrieval of several keys, as in RULER's niah_multiquery, arXiv:2404.06654, from the JSON object of `kv`.

    Pair i of n asked for stands near depth (i + 1/2) / n, whatever depth is asked for; the question asks for them in
    another order. The score is the share of the pairs found; a value counts only beside its key.
    """

    pairs: int = 16
    name: str = "kv_list"

    def __post_init__(self) -> None:
        if not 1 <= self.pairs <= 1000:
            raise InputError(f"pairs={self.pairs} must be between 1 and 1000")

    def make(self, draw: Draw) -> Example:
        sample = sample_pairs()
        per_record = draw.count(sample) / SAMPLE
        drawn = draw_pairs(draw.rng, self.pairs + 8 + int(1.2 * draw.tokens / per_record))
        targets, others = drawn[: self.pairs], drawn[self.pairs :]
        depths = draw.spread(self.pairs)
        limit = draw.allow(listing(targets))

        def build(count: int) -> Example:
            assert count - 2 <= len(others)  # a fifth more were drawn than the records' mean length asks for
            return _ask(targets, place(targets, depths, others[: count - 2]), limit)

        # Records are counted from two on; here that is the pairs asked for and no others.
        return fill_with_records(build, draw, sample, SAMPLE)


def _ask(targets: Sequence[Pair], placed: Sequence[Pair], limit: int) -> Example:
    """The example in which `targets` stand among `placed` and are asked for in their own order."""
    context = json_object(placed)
    answers = tuple(pair(key, value) for key, value in targets)
    starts = [context.index(answer) for answer in answers]
    ends = [max(1, len(context) - len(answer)) for answer in answers]
    depths = tuple(start / end for start, end in zip(starts, ends, strict=True))
    return Example(context, question([key for key, _ in targets]), listing(targets), answers, depths, limit)
