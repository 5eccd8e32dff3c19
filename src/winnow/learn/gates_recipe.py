"""How gates of heads are trained: the numbers that a run can be repeated from."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from winnow.learn.recipe import Logged, Positive
from winnow.parameters import Count, Natural


@dataclass(frozen=True, kw_only=True)
class GatesRecipe(Logged):
    """The defaults are those of DuoAttention's authors (arXiv:2410.10819, section 3.1, and their code)."""

    steps: Annotated[int, Ge(2)] = 2000
    """One sample each; samples come again where there are fewer."""
    learning_rate: Positive = 0.02
    """At its height: it rises in the first fifth of the steps and falls in the last, from and to a tenth of it."""
    penalty: Annotated[float, Ge(0)] = 0.05
    """Weight of the mean of all gates."""
    sink: Natural = 128
    """First tokens that a head without its gate sees."""
    recent: Count = 256
    """Last tokens that it sees, the row's own among them."""
    seed: int = 0
    """Of the order of the data."""
    checkpointing: bool = False
    """Less memory, more time."""
    validate_every: Count = 500
    """Steps between measurements on --validation."""

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        fifth = max(1, self.steps // 5)
        return self.learning_rate * min(1, max((step + 1) / fifth, 0.1), max((self.steps - step) / fifth, 0.1))
