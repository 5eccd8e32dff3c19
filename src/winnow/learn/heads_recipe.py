"""How retaining heads are trained: the numbers that a run can be repeated from."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from winnow.learn.recipe import Logged, Positive, require
from winnow.parameters import Count


@dataclass(frozen=True, kw_only=True)
class HeadsRecipe(Logged):
    """The defaults are Locret's (arXiv:2410.01805, appendix A, and the authors' code), but for `bf16`."""

    width: Count = 1024
    """Of the heads' hidden layer."""
    steps: Annotated[int, Ge(2)] = 3000
    """One sample each; samples come again where there are fewer."""
    updates: Count = 1
    """Of the heads in a step, each by as long a run of the sample's tokens, which is read once for all of them."""
    learning_rate: Positive = 5e-4
    """At its height; it begins with 0, rises linearly, then falls linearly."""
    warmup: float = 2 / 3
    """Share of the steps in which it rises."""
    length: Annotated[int, Ge(2)] = 10240
    """Tokens of a prompt that are learnt, the first ones."""
    smoothing: Annotated[float, Ge(0)] = 0.0025
    """Weight of the squared difference of neighbouring scores."""
    clip: Positive = 0.5
    """The largest absolute value of a gradient."""
    seed: int = 0
    """Of new heads and of the order of the data."""
    bf16: bool = False
    """The large matrix products in bfloat16 where the device has them, weights in float32."""
    validate_every: Count = 500
    """Steps between measurements on --validation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.warmup < 1, f"warmup={self.warmup} is a share of the steps, from 0 to below 1")

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        rise = min(round(self.warmup * self.steps), self.steps - 1)
        share = step / rise if step < rise else (self.steps - step) / (self.steps - rise)
        return self.learning_rate * share
