"""How the next token is chosen: transformers' own logits processors over the parameters."""

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

from winnow.sampling import SamplingParams


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
