"""What the bundled model still answers when most decode steps read little, and what each part of slow-fast reading is
worth: `python -m recipes.slowfast --out DIR`; the same command goes on after a stop, or with more examples.

Every arm, task and length gets a file in DIR; `python -m recipes.slowfast.report DIR` makes the tables.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from recipes.flags import pattern, share
from rich.progress import Progress
from transformers.utils import logging as transformers_logging

from winnow import LLM
from winnow.errors import WinnowError

from .arms import TASKS, arms
from .run import MODEL, Bench, Job


def main() -> None:
    """Parse the flags; one process with one thread does one job after the other."""
    parser = argparse.ArgumentParser(prog="python -m recipes.slowfast", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory of the measurements")
    parser.add_argument("--examples", type=int, default=20, help="of each task and length; default %(default)s")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192], help="of prompts, in tokens")
    parser.add_argument("--only", type=pattern, default="", metavar="REGEX", help="in the names of files to make")
    parser.add_argument("--shard", type=share, default=(1, 1), metavar="I/N", help="every Nth task and length, from I")
    parser.add_argument("--haystack", help="directory of texts to hide needles in; default the bundled books")
    flags = parser.parse_args()
    if flags.examples < 1:
        parser.error(f"--examples {flags.examples} must be at least 1")
    chosen = [job for job in jobs(flags.lengths, *flags.shard) if flags.only.search(job.name)]
    if not chosen:
        parser.error(
            f"no file is called like {flags.only.pattern!r}; for example {next(iter(jobs(flags.lengths))).name}"
        )
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    bench = Bench(LLM(MODEL), flags.examples, flags.haystack)
    try:
        for job in chosen:
            bench.check(job)
    except WinnowError as error:
        parser.error(str(error))
    with Progress() as progress:
        shown = progress.add_task("measuring", total=len(chosen))
        for job in chosen:
            progress.console.print(bench.measure(job, flags.out), highlight=False)
            progress.advance(shown)


def jobs(lengths: list[int], shard: int = 1, shards: int = 1) -> list[Job]:
    """All arms on every `shards`th pair of length and task, from number `shard` on.

    Arms that others are matched with come before those, and in the same shard.
    """
    pairs = [(length, task) for length in lengths for task in TASKS][shard - 1 :: shards]
    return [Job(arm, task, length) for arm in arms() for length, task in pairs if task in arm.tasks]


if __name__ == "__main__":
    main()
