"""How units are held against how close a plan stays to full attention: the same passages for all stores."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.document import document_ids, pieces
from benchmarks.fidelity_by_domain import Interval, bootstrap
from winnow import LLM, Plan
from winnow.evaluation.accuracy import wilson
from winnow.evaluation.evaluate import Answered, Progress, silent
from winnow.evaluation.fidelity import Fidelity, fidelities

FULL = str(Plan())
MADE_OF_KEYS = ("", ", hadamard=True", ", pre_rope=True", ", hadamard=True, pre_rope=True")
PLANS = (
    FULL,
    *(
        f"quantized(bits={bits}, keys='{keys}'{made})"
        for bits, keys, made in product((8, 4, 2), ("channel", "token"), MADE_OF_KEYS)
    ),
    *(f"hf_quantized(bits={bits}{zero})" for bits, zero in product((4, 2), ("", ", zero_point=True"))),
)


@dataclass(frozen=True)
class Passage:
    """Consecutive tokens of a text; index: its number in the text."""

    text: str
    index: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Stored:
    """A plan, or a peer, on the last tokens of a passage, of which `length` are the prompt.

    fidelity: to `against`. cache_bytes: of the units at the end; total_bytes: the most of all that is held, None where
    a peer does not tell.
    """

    passage: Passage
    length: int
    fidelity: Fidelity
    cache_bytes: int
    total_bytes: int | None
    against: str = FULL

    def to_dict(self) -> dict[str, Any]:
        """Every figure; of the passage its text and number, not its tokens."""
        where = {"text": self.passage.text, "index": self.passage.index, "length": self.length}
        told = {name: getattr(self, name) for name in ("against", "cache_bytes", "total_bytes")}
        return {**where, **self.fidelity.to_dict(), **told}


@dataclass(frozen=True)
class StoresRow:
    """A plan after `length` tokens, over all passages.

    against: whom it is compared with, full attention's plan or a peer. kl: of the next token, nats, from that one's to
    the plan's; top1: how often both find the same token likeliest; ratio: of the plan's perplexity to that one's on the
    same passages; each with its 95 % interval. cache_bytes: of the units at the end; cache_share, total_share: of that
    one's, at the end of units, and at the peak of all that is held, None where nobody tells.
    """

    plan: str
    against: str
    length: int
    passages: int
    kl: Interval
    top1: Interval
    ratio: Interval
    cache_bytes: float
    cache_share: float
    total_share: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Score:
    """The mean score of a plan, or a peer, on a task at one length, 0 .. 1, with its 95 % interval (Wilson's)."""

    plan: str
    length: int
    task: str
    examples: int
    score: float
    low: float
    high: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def passages(llm: LLM, texts: Sequence[Path], tokens: int, count: int) -> list[Passage]:
    """`count` of each text, of `tokens` tokens, evenly over it; of the bundled books where no text is given.

    They overlap where a text has fewer than so many times as many. Raises InputError where it has fewer than one.
    """
    found = []
    for text in texts or [None]:
        ids = document_ids(llm, text, tokens, count * tokens)
        named = "bundled" if text is None else text.name
        found += [Passage(named, index, tuple(each)) for index, each in enumerate(pieces(ids, count, tokens))]
    return found


def measure_stores(
    llm: LLM,
    plans: Sequence[Plan],
    chosen: Sequence[Passage],
    lengths: Sequence[int],
    fed: int,
    *,
    progress: Progress = silent,
) -> Iterator[list[Stored]]:
    """Per passage and length, all plans: the passage's last `fed` tokens after the `length` before these.

    plans: full attention's first. progress: called with the number of tokens just done.
    """
    for passage in chosen:
        for length in lengths:
            ids = passage.ids[-(length + fed) :]
            found = fidelities(llm, ids, plans, length, progress=progress)
            yield [Stored(passage, length, near, stats.cache_bytes, stats.total_bytes) for near, stats in found]


def summarise_stores(measured: Sequence[Stored]) -> list[StoresRow]:
    """A row per length and plan; all must have been measured on the same passages."""
    rows = []
    for length in sorted({each.length for each in measured}):
        groups: dict[str, list[Stored]] = {}
        for each in measured:
            if each.length == length:
                groups.setdefault(each.fidelity.plan, []).append(each)
        rows += [_row(group, groups[group[0].against]) for group in groups.values()]
    return rows


def scores(answers: Sequence[tuple[str, Answered]]) -> list[Score]:
    """A row per length, plan and task, of answers by who has given them."""
    groups: dict[tuple[int, str, str], list[float]] = {}
    for plan, answer in answers:
        if answer.score is not None:
            groups.setdefault((answer.length, answer.task, plan), []).append(answer.score)
    order, rows = list(dict.fromkeys(plan for plan, _ in answers)), []  # plans take turns in being the first
    for length, task, plan in sorted(groups, key=lambda place: (place[0], place[1], order.index(place[2]))):
        found = groups[length, task, plan]
        mean = sum(found) / len(found)
        rows.append(Score(plan, length, task, len(found), mean, *wilson(mean, len(found))))
    return rows


def _row(group: Sequence[Stored], full: Sequence[Stored]) -> StoresRow:
    kl, top1 = (bootstrap([getattr(each.fidelity, name) for each in group]) for name in ("kl", "top1"))
    loss = bootstrap([each.fidelity.nll_plan - each.fidelity.nll_full for each in group])
    ratio = Interval(*map(math.exp, (loss.mean, loss.low, loss.high)))
    units, total = (_share(group, full, name) for name in ("cache_bytes", "total_bytes"))
    assert units is not None
    held, first = sum(each.cache_bytes for each in group) / len(group), group[0]
    plan, length = first.fidelity.plan, first.length
    return StoresRow(plan, first.against, length, len(group), kl, top1, ratio, held, units, total)


def _share(group: Sequence[Stored], full: Sequence[Stored], count: str) -> float | None:
    mine, whole = ([getattr(each, count) for each in some] for some in (group, full))
    return None if None in (*mine, *whole) else sum(mine) / sum(whole)
