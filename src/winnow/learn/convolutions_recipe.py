"""How LoCoCo's convolutions are trained: the numbers that a run can be repeated from."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from winnow.learn.recipe import Logged, Positive, require
from winnow.parameters import Count


@dataclass(frozen=True, kw_only=True)
class ConvolutionsRecipe(Logged):
    """The defaults are LoCoCo's (arXiv:2406.05317, and the authors' code), of its memory module alone."""

    budget: Count = 512
    """Units per KV head that a layer keeps, sums among them."""
    sums: Count = 256
    """Of these, sums: what convolutions make."""
    chunk: Count = 512
    """Tokens read at a time; before each the cache is compressed."""
    kernel: Count = 21
    """Units that a convolution sees at once; an odd number."""
    length: Annotated[int, Ge(2)] = 4096
    """Tokens of a text that are read, the first ones."""
    steps: Annotated[int, Ge(2)] = 1000
    """Updates of the weights."""
    accumulate: Count = 128
    """Texts per step; they come again where there are fewer."""
    learning_rate: Positive = 0.05
    """Of the first step; it falls linearly to nothing."""
    seed: int = 0
    """Of new convolutions and of the order of the data."""
    save_every: Count = 20
    """Steps between checkpoints."""
    log_every: Count = 1
    """Steps between lines of log.jsonl."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.sums < self.budget, f"sums={self.sums} must be below budget={self.budget}, of which they are a part"
        )
        require(self.kernel % 2 == 1, f"kernel={self.kernel} must be odd: a unit, and as many on both of its sides")

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        return self.learning_rate * (self.steps - step) / self.steps
