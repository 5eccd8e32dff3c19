"""Train the bundled model under SPEED at several cutoffs, and measure all arms: `python -m recipes.speed --corpus DIR
--out DIR`; the same command goes on after a stop.

Models are written to DIR/models of --out, measurements to DIR/eval; `python -m recipes.speed.report` makes the table.
"""

from __future__ import annotations

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from rich.progress import Progress

from winnow.runtime.llm import LLM

from .arms import arms
from .data import write_data
from .run import MODEL, run_arm


def main() -> None:
    """Parse the flags; arms run in `--processes` processes, each with `--threads` threads."""
    parser = argparse.ArgumentParser(prog="python -m recipes.speed", description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="directory of books.txt.xz")
    parser.add_argument("--out", type=Path, required=True, help="data, models and measurements")
    parser.add_argument("--conversations", type=int, default=240, help="to train on; default %(default)s")
    parser.add_argument("--length", type=int, default=4096, help="prompt tokens of the tasks; default %(default)s")
    parser.add_argument("--examples", type=int, default=2, help="of each task and depth; default %(default)s")
    parser.add_argument("--only", nargs="+", help="names of arms such as speed-6-bos-lora; default all")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    flags = parser.parse_args()
    chosen = [arm for arm in arms() if not flags.only or arm.name in flags.only]
    if flags.only and (unknown := set(flags.only) - {arm.name for arm in chosen}):
        parser.error(f"no arm is called {', '.join(sorted(unknown))}; there are {', '.join(a.name for a in arms())}")
    tokenizer = LLM(MODEL).tokenizer
    assert tokenizer is not None
    data = flags.out / "train.jsonl"
    write_data(flags.corpus, data, tokenizer, conversations=flags.conversations, seed=0)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(flags.processes, mp_context=context) as pool, Progress() as progress:
        shown = progress.add_task("arms", total=len(chosen))
        jobs = {
            pool.submit(run_arm, arm, flags.out, flags.length, flags.examples, flags.threads): arm for arm in chosen
        }
        for job in as_completed(jobs):
            progress.update(shown, advance=1, description=f"{jobs[job].name} done")
            progress.console.print(job.result())


if __name__ == "__main__":
    main()
