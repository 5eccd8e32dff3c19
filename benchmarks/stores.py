"""How units are held against how close a plan stays to full attention: the same passages for all stores."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.document import document_ids, pieces
from benchmarks.fidelity_by_domain import Interval, bootstrap
from winnow import LLM, Plan, Stats
from winnow.evaluation.evaluate import Progress, silent
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
    """A plan on the last tokens of a passage, of which `length` are the prompt."""

    passage: Passage
    length: int
    fidelity: Fidelity
    stats: Stats

    def to_dict(self) -> dict[str, Any]:
        """Every figure; of the passage its text and number, not its tokens."""
        where = {"text": self.passage.text, "index": self.passage.index, "length": self.length}
        return {**where, **self.fidelity.to_dict(), "stats": self.stats.to_dict()}


@dataclass(frozen=True)
class StoresRow:
    """A plan after `length` tokens, over all passages.

    kl: of the next token, nats, full attention's to the plan's; top1: how often both find the same token likeliest;
    ratio: of the plan's perplexity to full attention's on the same passages; each with its 95 % interval. cache_bytes:
    of the units at the end; cache_share, total_share: of full attention's, at the end of units, and at the peak of all
    that is held.
    """

    plan: str
    length: int
    passages: int
    kl: Interval
    top1: Interval
    ratio: Interval
    cache_bytes: float
    cache_share: float
    total_share: float

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
            yield [Stored(passage, length, *each) for each in found]


def summarise_stores(measured: Sequence[Stored]) -> list[StoresRow]:
    """A row per length and plan; all plans must have been measured on the same passages."""
    rows = []
    for length in sorted({each.length for each in measured}):
        groups: dict[str, list[Stored]] = {}
        for each in measured:
            if each.length == length:
                groups.setdefault(each.fidelity.plan, []).append(each)
        rows += [_row(group, groups[FULL]) for group in groups.values()]
    return rows


def _row(group: Sequence[Stored], full: Sequence[Stored]) -> StoresRow:
    kl, top1 = (bootstrap([getattr(each.fidelity, name) for each in group]) for name in ("kl", "top1"))
    loss = bootstrap([each.fidelity.nll_plan - each.fidelity.nll_full for each in group])
    shares = [_total(group, name) / _total(full, name) for name in ("cache_bytes", "total_bytes")]
    ratio = Interval(*map(math.exp, (loss.mean, loss.low, loss.high)))
    held = _total(group, "cache_bytes") / len(group)
    return StoresRow(group[0].fidelity.plan, group[0].length, len(group), kl, top1, ratio, held, *shares)


def _total(group: Sequence[Stored], count: str) -> int:
    return sum(getattr(each.stats, count) for each in group)
