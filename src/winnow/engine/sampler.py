"""How the next token is chosen: what may come, biases and penalties, and transformers' own logits processors."""

from collections import Counter
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

from winnow.engine.request import Likeliest, Request
from winnow.runtime.decoder import Decoder
from winnow.runtime.forward import logits_of
from winnow.runtime.surprisal import LOGIT_ROWS
from winnow.sampling import SamplingParams


class Sampler:
    """Chooses the tokens of one sequence: of a request, the sample `index`."""

    def __init__(self, request: Request, device: torch.device, index: int = 0) -> None:
        self.params = params = request.params
        self._warpers = _warpers(params)
        changes = (params.min_tokens, params.logit_bias, params.presence_penalty, params.frequency_penalty)
        self._changes = request.grammar is not None or any(changes)  # in place
        # Of the text so far only the repetition penalty looks at anything, and that at which tokens occur in it.
        self._seen = dict.fromkeys(request.ids if params.repetition_penalty != 1 else ())
        self._new: Counter[int] = Counter()
        self._stop = sorted(request.stop_tokens)
        self._given = iter(request.given[index] if index < len(request.given) else ())
        self._grammar = None if request.grammar is None else request.grammar.fork()
        self._generator = torch.Generator(device)
        if params.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(params.seed + index)

    @property
    def done(self) -> bool:
        """Whether nothing may follow: a document by its schema is whole."""
        return self._grammar is not None and self._grammar.done

    def next(self, logits: Tensor) -> int:
        """The token that follows. logits: [vocab] float32.

        One that is given stays, whatever is drawn here; the generator goes on as it did where the token was chosen.
        """
        scores = self._processed(logits)
        if self.params.temperature == 0:
            token = int(scores.argmax())
        else:
            token = int(torch.multinomial(scores.softmax(-1), 1, generator=self._generator))
        token = next(self._given, token)
        self._new[token] += 1
        if self.params.repetition_penalty != 1:
            self._seen[token] = None
        if self._grammar is not None and token not in self._stop:
            self._grammar.take(token)
        return token

    def report(self, logits: Tensor, token: int) -> Likeliest | None:
        """Log-probabilities of the likeliest tokens and of `token`, before processors; None where not asked for."""
        if self.params.logprobs is None:
            return None
        return _likeliest(logits.log_softmax(-1), token, self.params.logprobs)

    def _processed(self, logits: Tensor) -> Tensor:
        """[vocab] -> [vocab], in the order that SamplingParams says; logits themselves stay as they are."""
        params = self.params
        scores = logits.clone() if self._changes else logits
        if self._grammar is not None:
            scores[~self._grammar.allowed(self._stop).to(scores.device)] = -torch.inf
        if params.min_tokens and self._new.total() < params.min_tokens:
            scores[self._stop] = -torch.inf
        if params.logit_bias:
            scores[list(params.logit_bias)] += scores.new_tensor(list(params.logit_bias.values()))
        if params.repetition_penalty != 1:
            seen = torch.tensor([list(self._seen)], device=scores.device)
            scores = RepetitionPenaltyLogitsProcessor(float(params.repetition_penalty))(seen, scores[None])[0]
        if self._new and (params.presence_penalty or params.frequency_penalty):
            counts = scores.new_tensor(list(self._new.values()))
            scores[list(self._new)] -= params.presence_penalty + params.frequency_penalty * counts
        if self._warpers:
            unused: Any = torch.empty(1, 0, dtype=torch.int64, device=scores.device)
            scores = self._warpers(unused, scores[None])[0]
        return scores


def likeliest_of(decoder: Decoder, hidden: Tensor, tokens: list[int], count: int) -> list[Likeliest]:
    """What each row said of the token that follows it. hidden: [rows, hidden] after the last layer; tokens: [rows]."""
    found: list[Likeliest] = []
    for start in range(0, len(tokens), LOGIT_ROWS):
        stop = min(start + LOGIT_ROWS, len(tokens))
        logprobs = logits_of(decoder, hidden[start:stop]).log_softmax(-1)
        found += [_likeliest(row, token, count) for row, token in zip(logprobs, tokens[start:stop], strict=True)]
    return found


def _likeliest(logprobs: Tensor, token: int, count: int) -> Likeliest:
    top = logprobs.topk(min(count, logprobs.shape[-1]))
    return {**dict(zip(top.indices.tolist(), top.values.tolist(), strict=True)), token: float(logprobs[token])}


def _warpers(params: SamplingParams) -> LogitsProcessorList:
    chain = LogitsProcessorList()
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
