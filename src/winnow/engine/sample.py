"""A sequence that is being continued, token by token."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from winnow.engine.job import Job
from winnow.engine.request import Completion, FinishReason, Likeliest, Output, Request
from winnow.engine.sampler import Sampler
from winnow.engine.text import TextStream
from winnow.runtime.sequence import Sequence as State


@dataclass(eq=False, kw_only=True)
class Sample(Job):
    """One of the samples of a request, whose prompt `state` has seen.

    arrived: when the request did. emit: told of every new token, and of the end. retire: takes its state at the end.
    prompt_logprobs: as in Completion. earlier: what it was before it began anew, whose tokens have been told of.
    """

    request: Request
    sampler: Sampler
    text: TextStream | None
    arrived: float
    index: int = 0
    emit: Callable[[Output], None] = field(default=lambda output: None, repr=False)
    retire: Callable[["Sample"], None] = field(default=lambda sample: sample.state.release(), repr=False)
    request_id: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Likeliest] = field(default_factory=list)
    prompt_logprobs: list[Likeliest | None] | None = None
    finish_reason: FinishReason | None = None
    reported: bool = False  # how it has ended
    earlier: "Sample | None" = None

    @classmethod
    def of(
        cls,
        request: Request,
        state: State,
        tokenizer: PreTrainedTokenizerBase | None,
        arrived: float,
        index: int = 0,
        **told: Any,
    ) -> "Sample":
        """A sample of a request; told: `emit` and `request_id`, where anyone listens, and others by name."""
        sampler = Sampler(request, state.going.device, index)
        text = None if tokenizer is None else TextStream(tokenizer, tuple(request.params.stop), request.ids)
        return cls(state, [], request=request, sampler=sampler, text=text, arrived=arrived, index=index, **told)

    def take(self, logits: Tensor) -> None:
        token = self.sampler.next(logits)
        if (report := self.sampler.report(logits, token)) is not None:
            self.logprobs.append(report)
        self.tokens.append(token)
        stats = self.state.stats
        stats.total_s = time.perf_counter() - self.arrived
        if len(self.tokens) == 1:
            stats.ttft_s = stats.total_s
        stats.new_tokens = len(self.tokens)
        if self.state.observer is not None:
            self.state.observer.chosen(self.state, token)
        piece = ""
        if token in self.request.stop_tokens:
            self.finish_reason = "stop"
        elif self.text is not None:
            self.text.stops = len(self.tokens) >= self.request.params.min_tokens
            piece = self.text.push(token)
            self.finish_reason = "stop" if self.text.stopped or self.sampler.done else None
        if self.finish_reason is None and len(self.tokens) == self.request.params.max_tokens:
            self.finish_reason = "length"
        if self.finish_reason is None:
            self.token = token
            self._tell([token], piece)
        else:
            self._end([token], piece)

    def end(self, reason: FinishReason, error: BaseException | None = None) -> None:
        """Stop where it is; of one that has ended: nothing. What goes wrong while one ends becomes how it ends.

        What has been told of before it began anew stays said.
        """
        if self.reported:
            return
        if (told := self.furthest) is not self:
            self.tokens, self.text, self.logprobs = told.tokens, told.text, told.logprobs
            self.state.stats.new_tokens = len(self.tokens)
        self.token, self.finish_reason, self.error = None, reason, error
        self._end([], "")

    @property
    def furthest(self) -> "Sample":
        """Itself, or what it was before it began anew until it has come further."""
        return self if self.earlier is None or len(self.tokens) > len(self.earlier.tokens) else self.earlier

    @property
    def fed(self) -> list[int]:
        """The tokens that its state has seen, where the plan shows the model all of them."""
        return [*self.request.ids, *self.tokens][: self.state.position]

    def completion(self) -> Completion:
        return Completion(
            text=self.text.text if self.text is not None else "",
            token_ids=self.tokens,
            finish_reason=self.finish_reason,
            stats=self.state.stats,
            prompt_index=self.request.index,
            sample_index=self.index,
            logprobs=self.logprobs if self.request.params.logprobs is not None else None,
            error=self.error,
            prompt_logprobs=self.prompt_logprobs,
        )

    def _end(self, new: list[int], piece: str) -> None:
        """Give the bytes back, while others still run, and hand out what text was held."""
        if self.text is not None and self.finish_reason != "error":
            try:
                piece += self.text.finish()
            except Exception as error:
                self.finish_reason, self.error = "error", error
            if self.text.stopped and self.finish_reason == "length":
                self.finish_reason = "stop"
        self.state.measure()
        self.retire(self)
        self._tell(new, piece, self.completion())
        self.reported = True

    def _tell(self, new: list[int], piece: str, completion: Completion | None = None) -> None:
        if completion is None and self.furthest is not self:
            return
        logprobs = None if self.request.params.logprobs is None else self.logprobs[len(self.logprobs) - len(new) :]
        before = self.prompt_logprobs if new and len(self.tokens) == 1 else None
        index = self.request.index
        stats = self.state.stats
        self.emit(Output(self.request_id, self.index, new, piece, completion, index, logprobs, before, stats))
