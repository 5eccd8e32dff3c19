"""Several needles: codes of several people, spread through a long text; the answer is one sentence per needle."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from winnow.errors import InputError
from winnow.tasks.example import Example, reply_tokens, share_found
from winnow.tasks.fill import Needle, fill_with_text
from winnow.tasks.haystack import Haystack, resolve_haystack
from winnow.tasks.words import NAMES


def sentence(name: str, code: str) -> str:
    """The needle, and its part of the answer."""
    return f"The secret code of {name} is {code}."


def question(names: Sequence[str]) -> str:
    """The question; the answer lists the codes in the order of `names`."""
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"What are the secret codes of {listed}? Give one sentence for each."


@dataclass(frozen=True)
class MultiNeedle:
    """Retrieval of several keys in the style of RULER's niah_multiquery, arXiv:2404.06654.

    Needle i of n stands near depth (i + 1/2) / n; the question asks for them in another order.
    """

    needles: int = 4
    haystack: Haystack | str | Path | None = None  # the bundled text, or a directory of texts
    name: str = "multi_needle"

    def __post_init__(self) -> None:
        if not 1 <= self.needles <= len(NAMES):
            raise InputError(f"needles={self.needles} must be between 1 and {len(NAMES)}")

    def example(
        self, rng: random.Random, *, tokens: int, tokenizer: PreTrainedTokenizerBase, depth: float | None = None
    ) -> Example:
        """One example; see `Task.example`. `depth` is ignored: the needles are spread over the whole text."""
        names = rng.sample(NAMES, self.needles)
        codes = [str(code) for code in rng.sample(range(10000, 100000), self.needles)]
        places = [(index + rng.uniform(0.2, 0.8)) / self.needles for index in range(self.needles)]
        rng.shuffle(places)
        sentences = tuple(sentence(name, code) for name, code in zip(names, codes, strict=True))
        hidden = [Needle(text, place) for text, place in zip(sentences, places, strict=True)]
        limit = reply_tokens(" ".join(sentences), tokenizer)

        def build(context: str, depths: tuple[float, ...]) -> Example:
            return Example(context, question(names), " ".join(sentences), sentences, depths, limit)

        return fill_with_text(build, hidden, resolve_haystack(self.haystack), rng, tokens=tokens, tokenizer=tokenizer)

    def score(self, example: Example, text: str) -> float:
        """Share of the sentences found word for word."""
        return share_found(example, text)
