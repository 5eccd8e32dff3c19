"""Many requests at once, one step at a time: whoever has an answer under way goes first, prompts fill the rest."""

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from winnow.cache.memory import COPIED
from winnow.engine.bound import Bound, bound_bytes, shared_bytes
from winnow.engine.entry import Entry
from winnow.engine.job import step
from winnow.engine.pace import Pace
from winnow.engine.request import Output, Request
from winnow.engine.retained import FAR, Kind, Retained, prefix_of
from winnow.errors import CapacityError, InputError, out_of_memory
from winnow.parameters import check_whole
from winnow.plan import Plan
from winnow.runtime.sequence import Prefix, Sequence
from winnow.sampling import SamplingParams

if TYPE_CHECKING:
    from winnow.runtime.llm import LLM, Prompt
    from winnow.runtime.truncate import Part

MOST_ANEW = 3  # times that one request begins anew: it may be what the memory is too little for


class Limits(TypedDict, total=False):
    """Of an `Engine`, which says what they are."""

    max_step_tokens: int | None
    max_step_s: float | None
    max_cache_bytes: int | None
    max_sequences: int | None
    retain_bytes: int


class Engine:
    """Continues requests together; they come and go between any two steps.

    In a step every running sample is fed its newest token, and with them go the next tokens of prompts, first come
    first served. A request is admitted when the most bytes that it can ever hold, by its plan's closed formulas, fit
    beside those of the others: nothing that has begun is pushed out, but where a step runs out of the machine's memory:
    the newest request that runs ends, and others that the step fed begin anew. `add` and `abort` may be called from any
    thread; one at a time steps.

    Args:
        llm: the model, and the plan that a request has unless it names one.
        max_step_tokens: rows in a step, decode rows included; small: short gaps between tokens, large: prompts are
            done sooner. None: the model's `prefill_chunk`. Of a deterministic model a step takes chunks of
            `prefill_chunk` as far through the layers as so many rows would go through all of them.
        max_step_s: how long a step may take, as far as fewer tokens of prompts can bring that about; their number
            follows from what steps have taken.
        max_cache_bytes: of all that requests hold together. None: whatever they need.
        max_sequences: samples continued at once. None: the model's `max_batch`.
        retain_bytes: of sequences that have ended, at most: they stay for prompts that begin as they do, as far as a
            plan's `prefix_stable` lets them, which then compute only what is new. Least recently used, they go
            before a request has to wait for `max_cache_bytes`. 0: none stays.
        progress: called with the number of prompt tokens just processed.
    Raises:
        InputError: a limit below 1.
    """

    def __init__(
        self,
        llm: "LLM",
        *,
        max_step_tokens: int | None = None,
        max_step_s: float | None = None,
        max_cache_bytes: int | None = None,
        max_sequences: int | None = None,
        retain_bytes: int = 0,
        progress: Callable[[int], None] = lambda tokens: None,
    ) -> None:
        limits = {
            "max_step_tokens": max_step_tokens,
            "max_cache_bytes": max_cache_bytes,
            "max_sequences": max_sequences,
        }
        check_whole(**{name: value for name, value in limits.items() if value is not None})
        check_whole(0, retain_bytes=retain_bytes)
        if max_step_s is not None and not (isinstance(max_step_s, (int, float)) and max_step_s > 0):
            raise InputError(f"max_step_s={max_step_s!r} must be a number above 0")
        self._llm, self._progress = llm, progress
        self.max_step_tokens = max_step_tokens or llm.prefill_chunk
        self.max_cache_bytes, self.max_sequences = max_cache_bytes, max_sequences or llm.max_batch
        # The most rows of a prompt that go through a layer together.
        self._chunk = llm.prefill_chunk if llm.decoder.deterministic else self.max_step_tokens
        self._pace = None if max_step_s is None else Pace(max_step_s, self.max_step_tokens)
        self._retained = Retained(llm.decoder, retain_bytes, self._chunk)
        self._waiting: deque[Entry] = deque()
        self._running: list[Entry] = []
        self._aborted: set[int] = set()
        self._outputs: list[Output] = []
        self._count, self._closed, self._busy = 0, False, False
        self._inbox = threading.Lock()  # of what other threads reach: never held during a step
        self._stepping = threading.RLock()

    def add(
        self,
        prompt: "Prompt",
        params: SamplingParams | None = None,
        *,
        plan: str | Plan | None = None,
        truncate: "Part | None" = None,
    ) -> int:
        """Queue a prompt (text or token ids); returns the id that its outputs carry.

        Raises InputError, PlanError or CapacityError as `LLM.generate`, and CapacityError where it can never fit.
        """
        [request] = self._llm.check([prompt], params, plan=plan, truncate=truncate)
        return self.enqueue(request)

    def enqueue(self, request: Request, progress: Callable[[int], None] | None = None) -> int:
        """Queue a request of `LLM.check`. Raises CapacityError where it can never fit, InputError after `close`.

        progress: told of its prompt's tokens, instead of the engine's.
        """
        return self._queue(request, progress, self._outputs.append)

    def _queue(self, request: Request, progress: Callable[[int], None] | None, report: Callable[[Output], None]) -> int:
        """report: told of what steps bring to it."""
        arrived, llm, params = time.perf_counter(), self._llm, request.params
        deep = request.plan.compute.full_depth(request.ids, llm.services)
        shape, new = llm.decoder.shape, params.max_tokens - 1
        alone = bound_bytes(request.plan, shape, len(request.ids), new, self._chunk, deep)
        # Of a prompt that goes on from another one, forks may copy a few tokens rather than share them.
        shared = 0 if llm.decoder.deterministic else len(request.ids) - COPIED * (self._retained.most > 0)
        bound = Bound(alone, shared_bytes(request.plan, shape, shared))
        if self.max_cache_bytes is not None and (needed := bound.of(params.n)) > self.max_cache_bytes:
            raise CapacityError(
                f"{len(request.ids)} prompt tokens and max_tokens={params.max_tokens}, {params.n} times, hold up to "
                f"{needed:,} bytes under {request.plan}, more than max_cache_bytes={self.max_cache_bytes:,}; shorten "
                "the prompt, ask for less, or use a plan that keeps less"
            )
        with self._inbox:
            if self._closed:
                raise InputError("the engine is closed; make a new one")
            self._count += 1
            entry = Entry(self._count, request, arrived, bound, report, progress or self._progress)
            self._waiting.append(entry)
        return entry.id

    def abort(self, request_id: int) -> None:
        """End a request wherever it is; its bytes go back before the next step. Of one that has ended: nothing.

        Raises InputError where there never was such a request.
        """
        with self._inbox:
            if not 0 < request_id <= self._count:
                raise InputError(f"there is no request {request_id}")
            self._aborted.add(request_id)
        if self._stepping.acquire(blocking=False):  # else whoever steps does it, this thread too
            try:
                if not self._busy:
                    self._sweep()
            finally:
                self._stepping.release()

    def step(self) -> list[Output]:
        """One pass through the model; returns what it brought, aborts since the last step included."""
        with self._stepping:
            self._sweep()
            self._admit()
            jobs = [job for entry in self._running for job in entry.jobs if job.pending]
            if jobs:
                decodes = sum(job.token is not None for job in jobs)
                allowed = self.max_step_tokens
                if self._pace is not None:
                    allowed = min(allowed, decodes + self._pace.offer(decodes))
                started, self._busy = time.perf_counter(), True
                try:
                    fed = step(self._llm.decoder, jobs, allowed)
                finally:
                    self._busy = False
                if self._pace is not None:
                    self._pace.note(fed, time.perf_counter() - started)
            self._sweep()
            outputs, self._outputs[:] = list(self._outputs), []
            return outputs

    def run(self) -> Iterator[Output]:
        """Step until nothing is left to do; broken off before, the next step returns what was not yielded."""
        brought = deque[Output]()
        try:
            while not self.idle:
                brought.extend(self.step())
                while brought:
                    yield brought.popleft()
        finally:
            with self._stepping:
                if not self._closed:
                    self._outputs[:0] = brought

    def follow(self, request: Request, progress: Callable[[int], None] | None = None) -> Generator[Output, None, None]:
        """Queue a request, step until it has ended, and yield what that brings to it; closed before, it is aborted.

        What steps bring to others is theirs: the next `step` returns it, or who follows them has it. progress: told of
        its prompt's tokens, instead of the engine's. Raises like `enqueue`, and what has ended it.
        """
        brought = deque[Output]()
        number, left = self._queue(request, progress, brought.append), request.params.n
        try:
            while left:
                with self._stepping:  # which another thread may have done for this one
                    if not brought:
                        if self.idle:
                            return
                        self._outputs[:0] = self.step()
                while brought:
                    output = brought.popleft()
                    if output.completion is not None and output.completion.error is not None:
                        raise output.completion.error
                    left -= output.completion is not None
                    yield output
        finally:
            self.abort(number)

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return not (self._waiting or self._running or self._outputs)

    @property
    def waiting(self) -> int:
        """Requests that have not been admitted yet."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Samples that are being continued, or will be when their prompt is done."""
        return sum(entry.alive for entry in self._running)

    @property
    def reserved_bytes(self) -> int:
        """The most bytes that all that is running can come to hold."""
        return sum(entry.reserved for entry in self._running)

    @property
    def retained_bytes(self) -> int:
        """Bytes of sequences that have ended."""
        return self._retained.nbytes

    def close(self) -> None:
        """End everything and give the memory back; nothing can be added after."""
        with self._inbox:
            self._closed = True
            self._aborted.update(entry.id for entry in (*self._waiting, *self._running))
        with self._stepping:
            self._sweep()
            self._retained.clear()
            self._outputs.clear()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def _settle(self) -> None:
        """End what a step has failed.

        Where memory was too little, what is retained goes; if there is nothing, or that was not enough before, the
        newest of all that run ends. Those of the step begin anew, as their states may be spoilt, and go on from where
        they were; who has done so too often ends instead of the newest.
        """
        failed = [entry for entry in self._running if entry.failure is not None]
        short = [each for each in failed if each.failure is not None and out_of_memory(each.failure)]
        if short:
            gone, failure = self.retained_bytes, short[0].failure
            self._retained.clear()
            tired = [entry for entry in short if entry.anew == MOST_ANEW]
            if not tired and (not gone or any(entry.anew for entry in short)):
                newest = max((entry for entry in self._running if entry.alive), key=lambda entry: entry.id)
                newest.end("error", failure)
                tired = [newest]
            short = [entry for entry in short if entry not in tired]
        for entry in failed:
            if entry not in short:
                entry.fail()
        for entry in sorted(short, key=lambda entry: entry.id, reverse=True):
            entry.again()
            with self._inbox:
                self._running.remove(entry)
                self._waiting.appendleft(entry)

    def _sweep(self) -> None:
        """End what has failed and what was aborted, and forget what has ended."""
        self._settle()
        with self._inbox:
            aborted, self._aborted = self._aborted, set()
            waiting = [entry for entry in self._waiting if entry.id in aborted]
            for entry in waiting:
                self._waiting.remove(entry)
        for entry in (*waiting, *(each for each in self._running if each.id in aborted)):
            entry.end("abort")
        self._running = [entry for entry in self._running if entry.alive]

    def _admit(self) -> None:
        """Begin what fits, in the order of arrival."""
        while True:
            with self._inbox:
                if not self._waiting or not self._fits(self._waiting[0]):
                    return
                entry = self._waiting.popleft()
                self._running.append(entry)
            self._begin(entry)

    def _begin(self, entry: Entry) -> None:
        """Begin what fits, from what is retained of its prompt; what is retained makes room for it."""
        llm, prefix, mark = self._llm, None, None
        try:
            # What somebody looks at is looked at from its start, and is nobody else's.
            if self._retained.most and entry.request.observer is None:
                prefix, mark = self._prefix(entry)
            entry.begin(llm.decoder, llm.tokenizer, self._chunk, prefix, mark)
        except BaseException as error:
            if out_of_memory(error) and self._retained.nbytes:
                self._retained.clear()
                self._begin(entry)
                return
            entry.end("error", error)
            if not isinstance(error, Exception):
                raise
        self._retained.shrink(self._room)

    def _prefix(self, entry: Entry) -> tuple[Prefix | None, int | None]:
        """What is retained of a prompt, and after how many of its tokens it is to be retained itself."""
        retained, request = self._retained, entry.request
        deep = request.plan.compute.full_depth(request.ids, self._llm.services)
        kind = retained.kind(request)
        kept, tokens = retained.find(request, kind, deep) or (None, 0)
        entry.keep = partial(self._keep, kind)
        prefix = None if kept is None else prefix_of(kept, tokens, self._room)
        retained.shrink(self._room, sparing=None if prefix is None else kept)
        return prefix, retained.mark(request.plan, deep)

    def _keep(self, kind: Kind, ids: list[int], state: Sequence) -> None:
        self._retained.put(kind, ids, state)
        self._retained.shrink(self._room)

    @property
    def _room(self) -> int:
        """Bytes that running requests leave."""
        return FAR if self.max_cache_bytes is None else self.max_cache_bytes - self.reserved_bytes

    def _fits(self, entry: Entry) -> bool:
        if self._running and self.running + entry.alive > self.max_sequences:
            return False
        return self.max_cache_bytes is None or self.reserved_bytes + entry.reserved <= self.max_cache_bytes
