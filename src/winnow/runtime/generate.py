"""Continue prompts: admit, prefill, decode together, stop. One loop serves whole completions and streams."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from winnow.plan import Plan
from winnow.runtime.decoder import Decoder
from winnow.runtime.forward import decode, prefill
from winnow.runtime.sampling import Sampler
from winnow.runtime.scorer import admit
from winnow.runtime.sequence import Sequence
from winnow.runtime.text import TextStream
from winnow.sampling import SamplingParams
from winnow.stats import Stats

FinishReason = Literal["stop", "length"]


@dataclass
class Completion:
    """One continuation of one prompt.

    text: without stop strings and special tokens; empty where the model has no tokenizer. token_ids: the new tokens,
    with the stop token that ended them, if one did. finish_reason: "stop" (a stop token or string) or "length"
    (`max_tokens`). logprobs: per new token, {token id: log-probability} of the likeliest ones and of itself.
    prompt_index, sample_index: which prompt, and which of its `n` samples.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    stats: Stats
    prompt_index: int = 0
    sample_index: int = 0
    logprobs: list[dict[int, float]] | None = None


@dataclass(frozen=True)
class Request:
    """A prompt that has been checked: token ids, parameters, plan, and the tokens that end it."""

    index: int
    ids: list[int]
    params: SamplingParams
    plan: Plan
    stop_tokens: frozenset[int]


@dataclass
class Running:
    """A sequence that is being continued."""

    request: Request
    state: Sequence
    sampler: Sampler
    started: float
    sample_index: int
    text: TextStream | None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[dict[int, float]] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    @classmethod
    def of(
        cls,
        request: Request,
        state: Sequence,
        tokenizer: PreTrainedTokenizerBase | None,
        device: torch.device,
        started: float,
        sample_index: int = 0,
    ) -> "Running":
        """A sample of a request whose prompt `state` has seen. started: when its prompt was begun."""
        sampler = Sampler(request.params, request.ids, device, sample_index)
        text = None if tokenizer is None else TextStream(tokenizer, tuple(request.params.stop))
        return cls(request, state, sampler, started, sample_index, text)

    def take(self, logits: Tensor) -> str:
        """Choose the next token from `logits` [vocab]; returns the text that has become certain."""
        token = self.sampler.next(logits)
        if (report := self.sampler.report(logits, token)) is not None:
            self.logprobs.append(report)
        self.tokens.append(token)
        stats = self.state.stats
        stats.total_s = time.perf_counter() - self.started
        if len(self.tokens) == 1:
            stats.ttft_s = stats.total_s
        stats.new_tokens = len(self.tokens)
        piece = ""
        if token in self.request.stop_tokens:
            self.finish_reason = "stop"
        elif self.text is not None:
            piece = self.text.push(token)
        if self.finish_reason is None and self.text is not None and self.text.stopped:
            self.finish_reason = "stop"
        if self.finish_reason is None and len(self.tokens) == self.request.params.max_tokens:
            self.finish_reason = "length"
        if self.finish_reason is not None:
            self.state.measure()
            self.state.release()  # the bytes go back while others still run
            if self.text is not None:
                piece += self.text.finish()
                self.finish_reason = "stop" if self.text.stopped else self.finish_reason
        return piece

    def completion(self) -> Completion:
        return Completion(
            text=self.text.text if self.text is not None else "",
            token_ids=self.tokens,
            finish_reason=self.finish_reason,
            stats=self.state.stats,
            prompt_index=self.request.index,
            sample_index=self.sample_index,
            logprobs=self.logprobs if self.request.params.logprobs is not None else None,
        )


def run(
    decoder: Decoder,
    tokenizer: PreTrainedTokenizerBase | None,
    requests: list[Request],
    *,
    chunk: int,
    max_batch: int,
    progress: Callable[[int], None] = lambda tokens: None,
) -> Iterator[tuple[Running, str]]:
    """Continue `requests`, at most `max_batch` sequences at a time, each admitted as soon as there is room.

    Yields (sequence, new text) after every token; a sequence with a finish_reason has ended. progress: prompt tokens
    done.
    """
    waiting = deque(requests)
    active: list[Running] = []
    while waiting or active:
        while waiting and len(active) + waiting[0].params.n <= max(max_batch, waiting[0].params.n):
            admitted, logits = _admit(decoder, tokenizer, waiting.popleft(), chunk, progress)
            for sequence in admitted:
                yield sequence, sequence.take(logits)
            active += [s for s in admitted if s.finish_reason is None]
        if active:
            yield from continue_all(decoder, active)
            active = [s for s in active if s.finish_reason is None]


def continue_all(decoder: Decoder, active: list[Running]) -> Iterator[tuple[Running, str]]:
    """One decode step of sequences that have not ended; yields each with its new text."""
    rows = decode(decoder, [(s.state, s.tokens[-1]) for s in active])
    for sequence, logits in zip(active, rows, strict=True):
        yield sequence, sequence.take(logits)


def _admit(
    decoder: Decoder,
    tokenizer: PreTrainedTokenizerBase | None,
    request: Request,
    chunk: int,
    progress: Callable[[int], None],
) -> tuple[list[Running], Tensor]:
    """Prefill a prompt once and fork it into its samples; also returns the logits [vocab] after the prompt."""
    started = time.perf_counter()
    params = request.params
    # The last of the new tokens is never fed.
    state, prompt = admit(decoder, tokenizer, request.plan, request.ids, params.max_tokens - 1, chunk)
    progress(state.omitted)
    logits = prefill(decoder, state, prompt, chunk, progress)
    states = [state.fork() for _ in range(params.n - 1)] + [state]
    samples = [
        Running.of(request, each, tokenizer, decoder.device, started, index) for index, each in enumerate(states)
    ]
    return samples, logits
