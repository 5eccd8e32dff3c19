"""A context in files: what a process holds while it is read, and how fast, each run in a process of its own."""

import gc
import hashlib
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType

import torch

from benchmarks.fresh import in_fresh_process
from benchmarks.resident import resident_parts
from benchmarks.source import Source
from benchmarks.speed import timed_feed
from winnow import LLM, Plan
from winnow.evaluation.evaluate import Progress, silent

EVERY_S = 0.1  # from one look at the process's memory to the next
POINTS = 200  # of the curve that is kept
WARM_CHUNKS = 2  # the prompt that is not counted, in prefill chunks

Look = tuple[float, int, int]  # seconds since the prompt's begin; bytes that are the process's alone, and of files


@dataclass(frozen=True)
class MappedRun:
    """One prompt of random tokens and the decode steps after it, once.

    read_share: of the units that full attention reads in decode steps. unit_bytes, total_bytes, disk_bytes: as in
    `Stats`, units those at the end. before_bytes: of the process, its own and of files, with the model loaded and a
    short prompt done; prefill_bytes, decode_bytes: the most at one look. curve: looks, the highest of some
    neighbours each. answer: a digest of all logits.
    """

    plan: str
    length: int
    prefill_s: float
    steps_s: tuple[float, ...]
    read_share: float
    unit_bytes: int
    total_bytes: int
    disk_bytes: int
    before_bytes: int
    prefill_bytes: int
    decode_bytes: int
    curve: tuple[Look, ...]
    answer: str

    @property
    def grown_bytes(self) -> int:
        return max(self.prefill_bytes, self.decode_bytes) - self.before_bytes

    @property
    def step_s(self) -> float:
        return statistics.median(self.steps_s)


def measure_mapped(
    source: Source, jobs: Sequence[tuple[Plan, int]], *, steps: int, progress: Progress = silent
) -> Iterator[MappedRun]:
    """Plans after prompts of so many tokens. progress: called with prompt tokens, and with 1 after every step."""
    for plan, length in jobs:
        yield in_fresh_process(_measure, source, plan, length, steps, progress=progress)


def _measure(source: Source, plan: Plan, length: int, steps: int, progress: Progress) -> MappedRun:
    return measure_here(source.load(), plan, length, steps=steps, progress=progress)


def measure_here(llm: LLM, plan: Plan, length: int, *, steps: int, progress: Progress = silent) -> MappedRun:
    """One run in this process; the memory of whatever else it holds is counted too."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(llm.decoder.shape.vocab, (length + steps,), generator=generator).tolist()
    warm = min(length, WARM_CHUNKS * llm.prefill_chunk)
    timed_feed(llm.session(plan=plan, max_tokens=3), tokens[:warm], tokens[-2:])
    gc.collect()
    before, digest = sum(resident_parts()), hashlib.sha256()
    with llm.session(plan=plan, max_tokens=steps + 1) as session, Looks() as looks:
        marks = [time.perf_counter()]
        for place in range(length, length + steps + 1):
            first = place == length
            fed = tokens[:length] if first else tokens[place - 1 : place]
            digest.update(session.feed(fed, progress=progress).numpy().tobytes())
            marks.append(time.perf_counter())
            if not first:
                progress(1)
        stats = session.stats
    prefill_s, *steps_s = (later - earlier for earlier, later in pairwise(marks))
    return MappedRun(
        plan=str(plan),
        length=length,
        prefill_s=prefill_s,
        steps_s=tuple(steps_s),
        read_share=stats.units_read / stats.units_full,
        unit_bytes=stats.cache_bytes,
        total_bytes=stats.total_bytes,
        disk_bytes=stats.disk_bytes,
        before_bytes=before,
        prefill_bytes=looks.most(0, prefill_s),
        decode_bytes=looks.most(prefill_s, float("inf")),
        curve=tuple(looks.curve()),
        answer=digest.hexdigest(),
    )


@dataclass
class Looks:
    """Looks at the memory of this process from beside it, one at the begin and one at the end in any case."""

    taken: list[Look] = field(default_factory=list)

    def __enter__(self) -> "Looks":
        self._begun, self._done = time.perf_counter(), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._take()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self._take()

    def most(self, start: float, stop: float) -> int:
        """The most bytes between two moments, the looks next to them included."""
        before = [each for each in self.taken if each[0] < start][-1:]
        after = [each for each in self.taken if each[0] >= stop][:1]
        inside = [each for each in self.taken if start <= each[0] < stop]
        return max(own + files for _, own, files in (*before, *inside, *after))

    def curve(self) -> list[Look]:
        """At most `POINTS` looks, each the highest of some neighbours."""
        step = -(-len(self.taken) // POINTS)
        groups = [self.taken[start : start + step] for start in range(0, len(self.taken), step)]
        return [max(group, key=lambda each: each[1] + each[2]) for group in groups]

    def _look(self) -> None:
        while not self._done.wait(EVERY_S):
            self._take()

    def _take(self) -> None:
        self.taken.append((time.perf_counter() - self._begun, *resident_parts()))
