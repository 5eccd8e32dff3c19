"""Train retaining heads for the bundled model, and measure what a cache of fixed size costs it:
`python -m recipes.locret --corpus DIR --out DIR`; the same command goes on after a stop.

Heads are written to DIR/heads of --out, measurements to DIR/eval; `python -m recipes.locret.report` makes the tables.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from recipes.speed.data import write_data
from rich.progress import Progress

from winnow.runtime.llm import LLM

from .arms import SETS, arms, heads
from .run import MODEL, measure, train

Job = Callable[[], str]


def main() -> None:
    """Parse the flags; jobs run in `--processes` processes, each with `--threads` threads."""
    parser = argparse.ArgumentParser(prog="python -m recipes.locret", description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="directory of books.txt.xz")
    parser.add_argument("--out", type=Path, required=True, help="data, heads and measurements")
    parser.add_argument("--conversations", type=int, default=3000, help="of every set; default %(default)s")
    parser.add_argument("--train", nargs="*", help="names of heads; default all, nothing after --train: none")
    parser.add_argument("--measure", nargs="*", help="groups of arms; default all, nothing after --measure: none")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    flags = parser.parse_args()
    trained = [each for each in heads() if flags.train is None or each.name in flags.train]
    measured = [each for each in arms() if flags.measure is None or each.group in flags.measure]
    unknown = {*(flags.train or ()), *(flags.measure or ())} - {h.name for h in heads()} - {a.group for a in arms()}
    if unknown:
        parser.error(
            f"unknown: {', '.join(sorted(unknown))}; heads: {', '.join(h.name for h in heads())}; "
            f"groups: {', '.join(dict.fromkeys(a.group for a in arms()))}"
        )
    tokenizer = LLM(MODEL).tokenizer
    assert tokenizer is not None
    for name, wanted in SETS.items():
        data = flags.out / "data" / f"{name}.jsonl"
        write_data(flags.corpus, data, tokenizer, conversations=flags.conversations, seed=0, wanted=wanted)
    _run([partial(train, each, flags.out, flags.threads) for each in trained], flags.processes, "training")
    jobs: list[Job] = [partial(measure, arm, n, flags.out, flags.threads) for arm in measured for n in arm.lengths]
    _run(jobs, flags.processes, "measuring")


def _run(jobs: list[Job], processes: int, title: str) -> None:
    """All jobs, several at a time, with a line for each that ends."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool, Progress() as progress:
        shown = progress.add_task(title, total=len(jobs))
        for job in as_completed([pool.submit(job) for job in jobs]):
            progress.update(shown, advance=1)
            progress.console.print(job.result())


if __name__ == "__main__":
    main()
