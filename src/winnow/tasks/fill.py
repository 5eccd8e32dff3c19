"""Fill a prompt to a wanted number of tokens: with text around needles, or with records.

Both ways guess from token counts of the pieces and then correct by measuring the rendered prompt, so a prompt of any
length costs two or three tokenisations.
"""

import bisect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from winnow.errors import InputError
from winnow.tasks.draw import Draw
from winnow.tasks.example import Example
from winnow.tasks.haystack import Haystack, resolve_haystack

_TEXT_SLACK = 16  # the prompt may stay this many tokens below the wanted length: a word is the smallest step
_CORRECTIONS = 8


@dataclass(frozen=True)
class Needle:
    """A sentence to hide at `depth` (0 .. 1), and the place it was found at once it is hidden."""

    sentence: str
    depth: float


def ask_about_needles(
    question: str,
    reply: str,
    answers: tuple[str, ...],
    needles: Sequence[Needle],
    haystack: Haystack | str | Path | None,
    draw: Draw,
) -> Example:
    """The example whose answers stand in the first of `needles`, in their order; see `fill_with_text`."""
    limit = draw.allow(reply)

    def build(context: str, depths: tuple[float, ...]) -> Example:
        return Example(context, question, reply, answers, depths[: len(answers)], limit)

    return fill_with_text(build, needles, haystack, draw)


def fill_with_text(
    build: Callable[[str, tuple[float, ...]], Example],
    needles: Sequence[Needle],
    haystack: Haystack | str | Path | None,
    draw: Draw,
) -> Example:
    """Hide `needles` between sentences of `haystack` so that the rendered prompt fills the tokens wanted.

    `build` makes the example from the context and the place of each needle, 0 .. 1, in the order of `needles`.
    haystack: the bundled text, or a directory of texts, where it is no Haystack.
    Raises InputError if the needles and the question alone, with a little text, are longer than that.
    """
    text = resolve_haystack(haystack)
    best = build(*_hide([], needles))
    bare = draw.length(best)
    room = draw.tokens - bare
    if room < 0:
        raise InputError(f"{draw.tokens} tokens are too few for this task; it needs at least {bare}")
    pool, counts = text.run(draw.rng, room + room // 16 + 4 * _TEXT_SLACK, draw.tokenizer)
    low, high = 0, sum(counts)  # `low` tokens of the pool fit, `high` may not
    allowed = room
    for _ in range(_CORRECTIONS):
        example = build(*_hide(_take(pool, counts, allowed, draw), needles))
        gap = draw.tokens - draw.length(example)
        if gap >= 0:
            best, low = example, allowed
        else:
            high = allowed
        if 0 <= gap <= _TEXT_SLACK:
            break
        allowed = min(max(low, allowed + gap - (1 if gap < 0 else 0)), high)
    return best


def fill_with_records(build: Callable[[int], Example], draw: Draw, sample: str, records: int) -> Example:
    """The example of the most records that fits the tokens wanted, to within one record.

    `build(count)` makes the example of the first `count` records and must not depend on earlier calls; `sample` is a
    text of so many `records`, which tells about how many tokens one takes. Raises InputError if not even two fit.
    """
    per_record = draw.count(sample) / records
    best = build(2)
    smallest = length = draw.length(best)
    if smallest > draw.tokens:
        raise InputError(f"{draw.tokens} tokens are too few for this task; it needs at least {smallest}")
    low, high = 2, 1 << 40  # `low` records fit, `high` do not
    while (more := int((draw.tokens - length) / per_record)) > 0 and low + 1 < high:
        count = min(low + more, high - 1)
        example = build(count)
        measured = draw.length(example)
        if measured > smallest:  # the first few may add nothing to a text that must have so many words
            per_record = (measured - smallest) / (count - 2)
        if measured <= draw.tokens:
            best, low, length = example, count, measured
        else:
            high = count
    return best


def _hide(sentences: Sequence[str], needles: Sequence[Needle]) -> tuple[str, tuple[float, ...]]:
    """The context with each needle at the sentence border nearest to its depth, and where each one stands."""
    borders = [0]
    for sentence in sentences:
        borders.append(borders[-1] + len(sentence))
    at: dict[int, list[int]] = {}
    for index, needle in enumerate(needles):
        wanted = needle.depth * borders[-1]
        after = min(bisect.bisect_left(borders, wanted), len(borders) - 1)
        border = after - (after > 0 and wanted - borders[after - 1] < borders[after] - wanted)
        at.setdefault(border, []).append(index)
    pieces: list[str] = []
    starts, length = [0] * len(needles), 0
    for border in range(len(borders)):
        for index in at.get(border, ()):
            starts[index] = length
            pieces.append(needles[index].sentence + " ")
            length += len(pieces[-1])
        if border < len(sentences):
            pieces.append(sentences[border])
            length += len(pieces[-1])
    context = "".join(pieces).rstrip()
    ends = [max(1, len(context) - len(needle.sentence)) for needle in needles]
    return context, tuple(min(1.0, start / end) for start, end in zip(starts, ends, strict=True))


def _take(sentences: Sequence[str], counts: Sequence[int], tokens: int, draw: Draw) -> list[str]:
    """The first sentences of about `tokens` tokens in all, the last one cut after a word."""
    whole = bisect.bisect_right(list(itertools.accumulate(counts)), tokens)
    taken, left = list(sentences[:whole]), tokens - sum(counts[:whole])
    if whole == len(sentences) or left == 0:
        return taken
    words = sentences[whole].split(" ")
    lengths = draw.counts([" " + word for word in words])
    fitting = bisect.bisect_right(list(itertools.accumulate(lengths)), left)
    return [*taken, " ".join(words[:fitting]).rstrip() + " "] if any(words[:fitting]) else taken
