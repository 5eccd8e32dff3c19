"""Variable tracking: a value is stored and copied on, in a long text; which variables hold it?"""

from __future__ import annotations

import itertools
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from winnow.errors import InputError
from winnow.tasks.example import Example, reply_tokens, share_found
from winnow.tasks.fill import Needle, fill_with_text
from winnow.tasks.haystack import Haystack, resolve_haystack


def chain(names: Sequence[str], value: str) -> list[str]:
    """The sentences of one chain: the first variable gets the value, each other one its predecessor."""
    first = f"The value {value} is stored in {names[0]}."
    return [first, *(f"{before} is copied to {after}." for before, after in itertools.pairwise(names))]


def question(value: str) -> str:
    """The question about one value."""
    return f"Which variables hold the value {value}? Follow the copies."


def reply(names: Sequence[str], value: str) -> str:
    """The answer in the wanted form: the chain itself, a sentence per variable."""
    return " ".join(chain(names, value))


def draw_names(rng: random.Random, count: int) -> list[str]:
    """`count` distinct names of three capital letters."""
    names: set[str] = set()
    while len(names) < count:
        names.add("".join(rng.choices(string.ascii_uppercase, k=3)))
    return rng.sample(sorted(names), count)


@dataclass(frozen=True)
class Variables:
    """RULER's variable tracking, arXiv:2404.06654, over book text; a chain stands in order, chains interleave.

    RULER writes `VAR X2 = VAR X1`, target first; the sentences here name the source first, so a small model that can
    only look up what followed a name can still follow a chain.
    """

    chains: int = 2  # the value of one is asked for, the others distract
    hops: int = 2  # copies in a chain
    haystack: Haystack | str | Path | None = None  # the bundled text, or a directory of texts
    name: str = "variables"

    def __post_init__(self) -> None:
        if self.chains < 1 or self.hops < 0 or self.chains * (self.hops + 1) > 1000:
            raise InputError(
                f"chains={self.chains} must be at least 1 and hops={self.hops} at least 0, "
                "with at most 1000 variables in all"
            )

    def example(
        self, rng: random.Random, *, tokens: int, tokenizer: PreTrainedTokenizerBase, depth: float | None = None
    ) -> Example:
        """One example; see `Task.example`. `depth` is ignored: the sentences are spread over the whole text."""
        length = self.hops + 1
        names = draw_names(rng, self.chains * length)
        values = [str(value) for value in rng.sample(range(10000, 100000), self.chains)]
        groups = [names[i * length : (i + 1) * length] for i in range(self.chains)]
        needles = [
            Needle(text, place)
            for group, value in zip(groups, values, strict=True)
            for text, place in zip(chain(group, value), sorted(rng.random() for _ in group), strict=True)
        ]
        limit = reply_tokens(reply(groups[0], values[0]), tokenizer)

        def build(context: str, depths: tuple[float, ...]) -> Example:
            answers, places = tuple(groups[0]), depths[:length]
            return Example(context, question(values[0]), reply(groups[0], values[0]), answers, places, limit)

        return fill_with_text(build, needles, resolve_haystack(self.haystack), rng, tokens=tokens, tokenizer=tokenizer)

    def score(self, example: Example, text: str) -> float:
        """Share of the variables of the asked chain that are named."""
        return share_found(example, text)
