"""Memory of samples of one prompt: what the closed formula reserves, and what the process comes to hold."""

import gc
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.fresh import in_fresh_process
from benchmarks.resident import Gauge, gauge_of
from benchmarks.source import Source
from winnow import LLM, Plan, SamplingParams
from winnow.engine.freed import give_back
from winnow.evaluation.evaluate import Progress, silent


@dataclass(frozen=True)
class ForksRun:
    """So many samples of a prompt, once.

    reserved_bytes: what they can come to hold, by the closed formula, that part which they share counted once;
    apart_bytes: the same if they shared nothing. before_bytes: memory of the process with the model loaded and a short
    prompt done; prompt_bytes: after the prompt; after_bytes: with every token of every sample there; memory: what these
    are of.
    """

    samples: int
    reserved_bytes: int
    apart_bytes: int
    before_bytes: int
    prompt_bytes: int
    after_bytes: int
    memory: str

    @property
    def grown_bytes(self) -> int:
        return self.after_bytes - self.before_bytes


def measure_forks(
    source: Source,
    plan: Plan,
    ids: Sequence[int],
    counts: Sequence[int],
    *,
    steps: int,
    repeats: int,
    progress: Progress = silent,
) -> Iterator[ForksRun]:
    """Each count in a process of its own, `repeats` times over. progress: called with prompt tokens, and with 1 after
    every step of samples.
    """
    for _ in range(repeats):
        for count in counts:
            yield in_fresh_process(_measure, source, plan, list(ids), count, steps, progress=progress)


def _measure(source: Source, plan: Plan, ids: list[int], count: int, steps: int, progress: Progress) -> ForksRun:
    return measure_here(source.load(), plan, ids, count, steps=steps, progress=progress)


def measure_here(
    llm: LLM, plan: Plan, ids: list[int], count: int, *, steps: int, progress: Progress = silent
) -> ForksRun:
    """One run in this process; the memory of whatever else it holds is counted too."""
    params = SamplingParams(max_tokens=steps + 2, n=count, temperature=1.0, seed=0, ignore_eos=True)
    with llm.engine(max_sequences=count) as warm:
        warm.add(ids[: llm.prefill_chunk], replace(params, n=1), plan=plan)
        for _ in warm.run():
            pass
    gauge = gauge_of(llm.device)
    before = _held(gauge)
    with llm.engine(max_sequences=count, progress=progress) as engine:
        engine.add(ids, params, plan=plan)
        while not engine.step():
            pass
        prompt = _held(gauge)
        for _ in range(steps):
            engine.step()
            progress(1)
        reserved, after = engine.reserved_bytes, _held(gauge)
    with llm.engine() as alone:
        alone.add(ids, replace(params, n=1), plan=plan)
        alone.step()
        apart = count * alone.reserved_bytes
    return ForksRun(count, reserved, apart, before, prompt, after, gauge.name)


def _held(gauge: Gauge) -> int:
    """Bytes now, without what is free: allocators keep that for later, how much depends on what came before."""
    gc.collect()
    give_back()
    return gauge.begin()


def summarise_forks(runs: Sequence[ForksRun]) -> list[ForksRun]:
    """The medians of each count."""
    rows = []
    for count in dict.fromkeys(run.samples for run in runs):
        mine = [run for run in runs if run.samples == count]
        names = ("before_bytes", "prompt_bytes", "after_bytes")
        medians = {name: int(statistics.median(getattr(run, name) for run in mine)) for name in names}
        rows.append(replace(mine[0], **medians))
    return rows
