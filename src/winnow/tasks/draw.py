"""How the tasks of this package make an example: from one draw of chance, a length and a depth."""

import random
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from winnow.tasks.example import Example, Task, render


@dataclass(frozen=True)
class Draw:
    """One call of `Task.example`, whose arguments these are; every draw from `rng` is the next one."""

    rng: random.Random
    tokens: int
    tokenizer: PreTrainedTokenizerBase
    depth: float | None

    def place(self) -> float:
        """Where the needle is to stand, 0 .. 1: as asked for, else drawn now."""
        return self.rng.random() if self.depth is None else self.depth

    def spread(self, count: int) -> list[float]:
        """A place near (i + 1/2) / count for each i, in random order."""
        places = [(index + self.rng.uniform(0.2, 0.8)) / count for index in range(count)]
        self.rng.shuffle(places)
        return places

    def count(self, text: str) -> int:
        """Tokens of a piece of a prompt."""
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each of several pieces."""
        return [len(ids) for ids in self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]]

    def length(self, example: Example) -> int:
        """Tokens of the rendered prompt."""
        return len(render(example, self.tokenizer))

    def allow(self, reply: str) -> int:
        """New tokens to allow for `reply`: a quarter more than it takes, and 8, for the wording of other models."""
        count = self.count(reply)
        return count + count // 4 + 8


class DrawnTask(Task):
    """A task whose examples come from a `Draw`; a subclass is a frozen dataclass of its parameters, with its name."""

    @abstractmethod
    def make(self, draw: Draw) -> Example:
        """See `Task.example`."""

    def example(
        self, rng: random.Random, *, tokens: int, tokenizer: PreTrainedTokenizerBase, depth: float | None = None
    ) -> Example:
        """One example; see `Task.example`."""
        return self.make(Draw(rng, tokens, tokenizer, depth))
