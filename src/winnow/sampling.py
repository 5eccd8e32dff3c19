"""How to continue a prompt: the parameters, checked; it loads nothing heavy."""

import json
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Interval

from winnow.errors import InputError
from winnow.parameters import Count, Natural, Share, wrong_type

# Beyond these a float32 logit divided or multiplied is no number any more.
COLDEST, HOTTEST = 1e-4, 1e6
MOST_BIAS = 100.0
Penalty = Annotated[float, Interval(ge=-2, le=2)]


@dataclass(frozen=True)
class SamplingParams:
    """How to continue a prompt.

    The same seed gives the same tokens whatever the batch; the samples of one prompt differ. A stop string is no part
    of the text. Logits are changed in this order: what may not come, `logit_bias`, `repetition_penalty`, the other
    penalties, `temperature`, `top_k`, `top_p`, `min_p`.

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
    presence_penalty: Penalty = 0.0
    """Taken from the logit of every token among the new ones; 0 is off."""
    frequency_penalty: Penalty = 0.0
    """The same, times how often it has come; 0 is off."""
    logit_bias: dict[int, float] = field(default_factory=dict)
    """Added to the logits of tokens, by id."""
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
    min_tokens: Natural = 0
    """No stop token or stop string ends it before so many new tokens."""
    json_schema: str | None = None
    """Only text that is JSON by this schema, itself JSON (needs llguidance)."""
    logprobs: Natural | None = None
    """Report so many of the likeliest tokens at every step, before processors."""
    prompt_logprobs: Natural | None = None
    """The same for the tokens of the prompt; for plans that compute them all in all layers."""

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
            "logit_bias": (
                all(token >= 0 and -MOST_BIAS <= bias <= MOST_BIAS for token, bias in self.logit_bias.items()),
                f"token ids, each with a number from {-MOST_BIAS:g} to {MOST_BIAS:g}",
            ),
            "min_tokens": (self.min_tokens <= self.max_tokens, f"at most max_tokens={self.max_tokens}"),
            "json_schema": (self.json_schema is None or _is_schema(self.json_schema), "a JSON object, as text"),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                raise InputError(f"{name}={getattr(self, name)!r:.200} must be {rule}")
        if self.n > 1 and self.temperature == 0:
            raise InputError(f"n={self.n} greedy samples would all be the same; set temperature above 0")
        if self.json_schema is not None and (self.ignore_eos or self.min_tokens or self.stop_token_ids):
            raise InputError(
                "json_schema says where the text ends; leave out ignore_eos, min_tokens and stop_token_ids"
            )


def _is_schema(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
