"""How the next token is chosen: parameters, and transformers' own logits processors over them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from winnow.errors import InputError
from winnow.parameters import wrong_type

# Beyond these a float32 logit divided or multiplied is no number any more.
COLDEST, HOTTEST = 1e-4, 1e6


@dataclass(frozen=True)
class SamplingParams:
    """How to continue a prompt.

    max_tokens: the most new tokens. temperature: 0 is greedy. top_k: 0 is off; top_p: 1 is off; min_p: 0 is off;
    repetition_penalty: 1 is off. seed: for sampling; the same seed gives the same tokens whatever the batch, and the
    samples of one prompt differ. n: how many samples of each prompt, from one prefill. stop: strings that end the text
    and are not part of it. stop_token_ids: tokens that do, besides the model's own. ignore_eos: go on past the model's
    own. logprobs: how many of the likeliest tokens to report at every step, before processors; None: no report.

    Raises InputError naming the parameter that is out of range.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] | list[str] | str = ()
    stop_token_ids: tuple[int, ...] | list[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if problem := wrong_type(self):
            raise InputError(problem)
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        largest = 2**63 - self.n
        rules = {
            "max_tokens": (self.max_tokens >= 1, "at least 1"),
            "temperature": (
                self.temperature == 0 or COLDEST <= self.temperature <= HOTTEST,
                f"at least 0; 0 is greedy, anything else {COLDEST:g} to {HOTTEST:g}",
            ),
            "top_k": (self.top_k >= 0, "at least 0; 0 is off"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1; 1 is off"),
            "min_p": (0 <= self.min_p <= 1, "between 0 and 1; 0 is off"),
            "repetition_penalty": (COLDEST <= self.repetition_penalty <= HOTTEST, f"above {COLDEST:g}; 1 is off"),
            "n": (self.n >= 1, "at least 1"),
            "seed": (self.seed is None or 0 <= self.seed <= largest, f"from 0 to {largest}"),
            "stop": (all(self.stop), "strings that are not empty"),
            "logprobs": (self.logprobs is None or self.logprobs >= 0, "at least 0, or None"),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                raise InputError(f"{name}={getattr(self, name)!r} must be {rule}")
        if self.n > 1 and self.temperature == 0:
            raise InputError(f"n={self.n} greedy samples would all be the same; set temperature above 0")


class Sampler:
    """Chooses tokens for one sequence. prompt: its token ids; index: which of the prompt's samples this is."""

    def __init__(self, params: SamplingParams, prompt: list[int], device: torch.device, index: int = 0) -> None:
        self.params = params
        self._processors = _processors(params)
        # Of the text so far only the repetition penalty looks at anything, and that at which tokens occur in it.
        self._seen = dict.fromkeys(prompt if params.repetition_penalty != 1 else ())
        self._generator = torch.Generator(device)
        if params.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(params.seed + index)

    def next(self, logits: Tensor) -> int:
        """The token that follows. logits: [vocab] float32."""
        scores: Tensor = logits[None]
        if self._processors:
            history: Any = torch.tensor([list(self._seen)], dtype=torch.int64, device=logits.device)
            scores = self._processors(history, logits[None])
        if self.params.temperature == 0:
            token = int(scores.argmax())
        else:
            token = int(torch.multinomial(scores.softmax(-1)[0], 1, generator=self._generator))
        if self.params.repetition_penalty != 1:
            self._seen[token] = None
        return token

    def report(self, logits: Tensor, token: int) -> dict[int, float] | None:
        """Log-probabilities of the likeliest tokens and of `token`, before processors; None where not asked for."""
        if self.params.logprobs is None:
            return None
        logprobs = logits.log_softmax(-1)
        top = logprobs.topk(min(self.params.logprobs, logprobs.shape[-1]))
        return {**dict(zip(top.indices.tolist(), top.values.tolist(), strict=True)), token: float(logprobs[token])}


def _processors(params: SamplingParams) -> LogitsProcessorList:
    chain = LogitsProcessorList()
    if params.repetition_penalty != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.temperature == 0:
        return chain
    if params.temperature != 1:
        chain.append(TemperatureLogitsWarper(float(params.temperature)))
    if params.top_k:
        chain.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        chain.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        chain.append(MinPLogitsWarper(params.min_p))
    return chain
