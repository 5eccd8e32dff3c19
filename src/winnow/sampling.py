"""How to continue a prompt: the parameters, checked; it loads nothing heavy."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

from winnow.errors import InputError
from winnow.parameters import Count, Natural, Share, wrong_type

# Beyond these a float32 logit divided or multiplied is no number any more.
COLDEST, HOTTEST = 1e-4, 1e6


@dataclass(frozen=True)
class SamplingParams:
    """How to continue a prompt.

    The same seed gives the same tokens whatever the batch; the samples of one prompt differ. A stop string is no part
    of the text.

    Raises InputError naming the parameter that is out of range.
    """

    max_tokens: Count = 128
    """The most new tokens."""
    temperature: float = 0.0
    """0 is greedy."""
    top_k: Natural = 0
    """Only among the likeliest so many; 0 is off."""
    top_p: Share = 1.0
    """Only among the likeliest that have this probability together; 1 is off."""
    min_p: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Only tokens at least this likely, of the likeliest one's probability; 0 is off."""
    repetition_penalty: float = 1.0
    """Makes tokens of the text so far less likely; 1 is off."""
    seed: int | None = None
    """Of the sampling."""
    n: Count = 1
    """Samples of the prompt, from one prefill."""
    stop: tuple[str, ...] | list[str] | str = ()
    """End before this text; repeatable."""
    stop_token_ids: tuple[int, ...] | list[int] = ()
    """End after this token, besides the model's own; repeatable."""
    ignore_eos: bool = False
    """Go on past the model's stop tokens."""
    logprobs: Natural | None = None
    """Report so many of the likeliest tokens at every step, before processors."""

    def __post_init__(self) -> None:
        if problem := wrong_type(self):
            raise InputError(problem)
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        largest = 2**63 - self.n
        rules = {
            "temperature": (
                self.temperature == 0 or COLDEST <= self.temperature <= HOTTEST,
                f"at least 0; 0 is greedy, anything else {COLDEST:g} to {HOTTEST:g}",
            ),
            "repetition_penalty": (COLDEST <= self.repetition_penalty <= HOTTEST, f"above {COLDEST:g}; 1 is off"),
            "seed": (self.seed is None or 0 <= self.seed <= largest, f"from 0 to {largest}"),
            "stop": (all(self.stop), "strings that are not empty"),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                raise InputError(f"{name}={getattr(self, name)!r} must be {rule}")
        if self.n > 1 and self.temperature == 0:
            raise InputError(f"n={self.n} greedy samples would all be the same; set temperature above 0")
