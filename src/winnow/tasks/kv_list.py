"""Key-value listing: a JSON object of pairs fills the context; many keys are asked for in one question."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from winnow.errors import InputError
from winnow.tasks.example import Example, reply_tokens, share_found
from winnow.tasks.fill import fill_with_records
from winnow.tasks.kv import draw_pairs, json_object, pair

Pair = tuple[str, str]


def listing(pairs: Sequence[Pair]) -> str:
    """The answer in the wanted form: the pairs as they stand in the object, a pair per line."""
    return ",\n ".join(pair(key, value) for key, value in pairs)


def question(keys: Sequence[str]) -> str:
    """The question; the answer lists the pairs in the order of `keys`."""
    quoted = [f'"{key}"' for key in keys]
    listed = quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"
    return f"What are the values of the keys {listed} in the JSON object above? Repeat the pairs."


def place(targets: Sequence[Pair], depths: Sequence[float], others: Sequence[Pair]) -> list[Pair]:
    """`others` in their order, with each of `targets` after the share of them that its depth says."""
    ranked = [((index + 0.5) / max(1, len(others)), other) for index, other in enumerate(others)]
    ranked += zip(depths, targets, strict=True)
    return [each for _, each in sorted(ranked, key=lambda item: item[0])]


@dataclass(frozen=True)
class KeyValueList:
    """Retrieval of several keys, as in RULER's niah_multiquery, arXiv:2404.06654, from the JSON object of `kv`.

    Pair i of n asked for stands near depth (i + 1/2) / n; the question asks for them in another order. A value counts
    only beside its key.
    """

    pairs: int = 16
    name: str = "kv_list"

    def __post_init__(self) -> None:
        if not 1 <= self.pairs <= 1000:
            raise InputError(f"pairs={self.pairs} must be between 1 and 1000")

    def example(
        self, rng: random.Random, *, tokens: int, tokenizer: PreTrainedTokenizerBase, depth: float | None = None
    ) -> Example:
        """One example; see `Task.example`. `depth` is ignored: the pairs are spread over the whole object."""
        sample = json_object(draw_pairs(random.Random(0), 64))
        per_record = len(tokenizer(sample, add_special_tokens=False)["input_ids"]) / 64
        drawn = draw_pairs(rng, self.pairs + 8 + int(1.2 * tokens / per_record))
        targets, others = drawn[: self.pairs], drawn[self.pairs :]
        depths = [(index + rng.uniform(0.2, 0.8)) / self.pairs for index in range(self.pairs)]
        rng.shuffle(depths)
        limit = reply_tokens(listing(targets), tokenizer)

        def build(count: int) -> Example:
            assert count - 2 <= len(others)  # a fifth more were drawn than the records' mean length asks for
            return _ask(targets, place(targets, depths, others[: count - 2]), limit)

        # Records are counted from two on; here that is the pairs asked for and no others.
        return fill_with_records(build, per_record=per_record, tokens=tokens, tokenizer=tokenizer)

    def score(self, example: Example, text: str) -> float:
        """Share of the pairs found, each value with its key."""
        return share_found(example, text)


def _ask(targets: Sequence[Pair], placed: Sequence[Pair], limit: int) -> Example:
    """The example in which `targets` stand among `placed` and are asked for in their own order."""
    context = json_object(placed)
    answers = tuple(pair(key, value) for key, value in targets)
    starts = [context.index(answer) for answer in answers]
    ends = [max(1, len(context) - len(answer)) for answer in answers]
    depths = tuple(start / end for start, end in zip(starts, ends, strict=True))
    return Example(context, question([key for key, _ in targets]), listing(targets), answers, depths, limit)
