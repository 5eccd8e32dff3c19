"""How indexers are trained: the numbers that a run can be repeated from."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from winnow.learn.recipe import Logged, Positive
from winnow.parameters import Count


@dataclass(frozen=True, kw_only=True)
class IndexersRecipe(Logged):
    """Steps and learning rate are those of the warm-up of DeepSeek-V3.2 (arXiv:2512.02556, section 2.1), whose rate
    stays and whose indexer has 64 heads of 128 values."""

    heads: Count = 8
    """Of each indexer."""
    dim: Count = 32
    """Values of a query head, and of the one key of a token."""
    steps: Annotated[int, Ge(2)] = 1000
    """One sample each; samples come again where there are fewer."""
    learning_rate: Positive = 1e-3
    """Of the first step; it falls linearly to nothing."""
    length: Annotated[int, Ge(2)] = 4096
    """Tokens of a text that are read, the first ones."""
    rows: Count = 256
    """Of these, tokens whose attention is learnt: those behind the prompt, then others, drawn at random."""
    seed: int = 0
    """Of new indexers, of the order of the data and of what is drawn."""
    validate_every: Count = 500
    """Steps between measurements on --validation."""

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        return self.learning_rate * (self.steps - step) / self.steps
