"""Quality against every cost, for all policies and for plans that join them, on the bundled model:
`python -m recipes.frontier --out DIR`; the same command goes on after a stop, or with more examples.

Every arm and length gets a file in DIR; `python -m recipes.frontier.report DIR` makes the tables and the picture.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from recipes.flags import pattern, share
from rich.progress import Progress
from transformers.utils import logging as transformers_logging

from .arms import arms
from .run import Bench, Job


def main() -> None:
    """Parse the flags; one process with one thread does one job after the other."""
    parser = argparse.ArgumentParser(prog="python -m recipes.frontier", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory of the measurements")
    parser.add_argument("--examples", type=int, default=4, help="of each task and length; default %(default)s")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192], help="of prompts, in tokens")
    parser.add_argument("--only", type=pattern, default="", metavar="REGEX", help="in the names of arms")
    parser.add_argument("--shard", type=share, default=(1, 1), metavar="I/N", help="every Nth job, from I")
    parser.add_argument("--list", action="store_true", help="print the names of the arms and end")
    flags = parser.parse_args()
    if flags.examples < 1:
        parser.error(f"--examples {flags.examples} must be at least 1")
    chosen = [job for job in jobs(flags.lengths, *flags.shard) if flags.only.search(job.arm.name)]
    if not chosen:
        parser.error(f"no arm is called like {flags.only.pattern!r}; --list prints their names")
    if flags.list:
        print("\n".join(dict.fromkeys(job.arm.name for job in chosen)))
        return
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    bench = Bench(flags.examples)
    with Progress() as progress:
        shown = progress.add_task("measuring", total=len(chosen))
        for job in chosen:
            progress.console.print(bench.measure(job, flags.out), highlight=False, markup=False)
            progress.advance(shown)


def jobs(lengths: list[int], shard: int = 1, shards: int = 1) -> list[Job]:
    """Every `shards`th arm at all lengths, from number `shard` on, the most important first."""
    return [Job(arm, length) for arm in arms()[shard - 1 :: shards] for length in lengths]


if __name__ == "__main__":
    main()
