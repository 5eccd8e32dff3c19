"""A request on its way through the engine: waiting, its prompt being processed, its samples being continued."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from winnow.engine.bound import Bound
from winnow.engine.job import Job
from winnow.engine.request import Completion, FinishReason, Likeliest, Output, Request
from winnow.engine.sample import Sample
from winnow.engine.sampler import likeliest_of
from winnow.engine.services import admit
from winnow.runtime.decoder import Decoder
from winnow.runtime.sequence import Prefix, Sequence
from winnow.stats import Stats


@dataclass(eq=False)
class Entry:
    """A request and what has become of it.

    bound: the most bytes that its samples ever hold. emit: told of every output. keep: takes tokens and a sequence
    that has seen them, to be retained; None: nothing is. jobs: none while it waits; its prompt; its samples, those that
    have ended too. anew: how often it has begun once more, for want of memory. pinned: bytes of units of others, in
    memory that it shares. earlier: samples as they were before it began anew. done: those that had ended before.
    """

    id: int
    request: Request
    arrived: float
    bound: Bound
    emit: Callable[[Output], None]
    progress: Callable[[int], None]
    keep: Callable[[list[int], Sequence], None] | None = None
    jobs: list[Job] = field(default_factory=list)
    ended: bool = False
    anew: int = 0
    pinned: int = 0
    earlier: dict[int, Sample] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)

    @property
    def alive(self) -> int:
        """Samples that have not ended."""
        if self.ended:
            return 0
        samples = [job for job in self.jobs if isinstance(job, Sample)]
        return sum(sample.finish_reason is None for sample in samples) if samples else len(self.left)

    @property
    def left(self) -> list[int]:
        """Samples that have not ended before this one began anew."""
        return [index for index in range(self.request.params.n) if index not in self.done]

    @property
    def failure(self) -> BaseException | None:
        """What a step has raised for one of its jobs that has not ended."""
        return next((job.error for job in self._failed), None)

    @property
    def _failed(self) -> list[Job]:
        return [job for job in self.jobs if job.error is not None and not (isinstance(job, Sample) and job.reported)]

    @property
    def reserved(self) -> int:
        """The most bytes that what is alive of it can come to hold."""
        return self.bound.of(self.alive) + (self.pinned if self.alive else 0)

    def begin(
        self,
        decoder: Decoder,
        tokenizer: PreTrainedTokenizerBase | None,
        chunk: int,
        prefix: Prefix | None = None,
        mark: int | None = None,
    ) -> None:
        """Make room for the prompt; `chunk`: the most rows of it in a step.

        prefix: what is there of it already. mark: after how many of its tokens the sequence is kept. Raises what keeps
        it from beginning; nothing has begun then.
        """
        request, started = self.request, time.perf_counter()
        # The last of the new tokens is never fed.
        new = request.params.max_tokens - 1
        state, prompt = admit(decoder, tokenizer, request.plan, request.ids, new, chunk, prefix)
        state.stats.queue_s = started - self.arrived
        self.pinned = sum(state.reached_nbytes.values()) - sum(state.held())
        told: dict[str, Any] = {"progress": self.progress, "mark": mark}
        self.jobs = [_Prompt(state, prompt[state.position :], **told, entry=self, decoder=decoder, tokenizer=tokenizer)]
        if (observer := request.observer) is not None:
            state.observer = observer
            observer.begun(state, prompt)  # which may raise, as below: its units are given back as they are at any end
        self.progress(state.omitted + state.position)  # which may raise, or end this

    def end(self, reason: FinishReason, error: BaseException | None = None) -> None:
        """Stop it wherever it is."""
        if self.ended:
            return
        running = [job for job in self.jobs if isinstance(job, Sample)]
        for sample in running:
            if sample.finish_reason is None:
                sample.end(reason, error)
        if running:
            return
        stats = self.jobs[0].state.stats if self.jobs else Stats(prompt_tokens=len(self.request.ids))
        for job in self.jobs:
            job.state.measure()
            job.state.release()
        self.ended, self.jobs, self.keep = True, [], None  # what the samples below had has been released
        for index in self.left:
            if index in self.earlier:
                self.earlier[index].end(reason, error)
                continue
            completion = Completion("", [], reason, stats, self.request.index, index, error=error)
            self.emit(Output(self.id, index, [], "", completion, self.request.index))

    def fail(self) -> None:
        """End those whose step has failed."""
        for job in self._failed:
            if isinstance(job, Sample):
                job.end("error", job.error)
            else:
                self.end("error", job.error)

    def again(self) -> None:
        """Wait once more: all memory goes back, and what samples have come to is fed to them as it was when they came
        to it (`Request.going_on`). Costs and times are then those of the new beginning."""
        given = [*self.request.given, *[()] * (self.request.params.n - len(self.request.given))]
        for job in self.jobs:
            if isinstance(job, Sample):
                self.earlier[job.index] = told = job.furthest
                given[job.index] = max(given[job.index], tuple(told.tokens), key=len)
            if isinstance(job, Sample) and job.reported:
                self.done.add(job.index)
            else:
                job.state.release()
        self.request, self.jobs, self.pinned, self.keep = self.request.going_on(given), [], 0, None
        self.anew += 1

    def retire(self, sample: Sample) -> None:
        """Retain the sequence of a sample that has ended, unless it ended by an error: that may have spoilt it."""
        if self.keep is None or sample.finish_reason == "error":
            sample.state.release()
        else:
            self.keep(sample.fed, sample.state)


@dataclass(eq=False, kw_only=True)
class _Prompt(Job):
    """The prompt of a request; where it ends, its samples begin."""

    entry: Entry
    decoder: Decoder
    tokenizer: PreTrainedTokenizerBase | None
    logprobs: list[Likeliest | None] = field(default_factory=lambda: [None])

    def passed(self, hidden: Tensor) -> None:
        entry, state = self.entry, self.state
        if entry.keep is not None and state.position == self.mark:
            entry.keep(entry.request.ids[: self.mark], state.fork())
        ids, count = self.entry.request.ids, self.entry.request.params.prompt_logprobs
        if count is not None:
            done = len(ids) - len(self.prompt)
            following = ids[done - len(hidden) + 1 : done + 1]
            self.logprobs += likeliest_of(self.decoder, hidden[: len(following)], following, count)

    def take(self, logits: Tensor) -> None:
        entry, request = self.entry, self.entry.request
        left = entry.left
        states = [self.state.fork() for _ in left[1:]] + [self.state]
        told: dict[str, Any] = {"emit": entry.emit, "request_id": entry.id}
        if entry.keep is not None:
            told["retire"] = entry.retire
        if request.params.prompt_logprobs is not None:
            told["prompt_logprobs"] = self.logprobs
        samples = [
            Sample.of(request, state, self.tokenizer, entry.arrived, index, earlier=entry.earlier.get(index), **told)
            for index, state in zip(left, states, strict=True)
        ]
        entry.jobs = list(samples)
        for sample in samples:
            sample.take(logits)

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        for job in self.entry.jobs:  # its samples, where it has come to them
            if job is not self:
                job.fail(error)
