"""Train SmolLM2's parts: `python -m recipes.smollm2.parts --data DIR --out DIR`; the same command goes on after a stop.

DIR of --data has what `python -m recipes.smollm2` writes. Each part is one `winnow train` command, shown as it starts,
and gets a directory of its name in --out; beside it are its picture and what was printed.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from winnow.learn.directory import last_checkpoint
from winnow.runtime.adapters import read_metadata

NAMED = re.compile(r"{([\w-]+)}")
ADAPTER = "--batch 2 --learning-rate 3e-4 --lora.rank 16 --dtype float32 --bf16 --validate-every 300"
TAUGHT = "--cutoff 23 --decode-from last:256 --batch 1 --accumulate 2 --lora.rank 16 --dtype float32 --bf16"
HEADS = "--width 256 --length 4096 --updates 32 --learning-rate 1e-3 --warmup 0.1 --validate-every 80"
ZAP = "--width 128 --length 4096 --updates 32 --learning-rate 1e-3 --warmup 0.1 --validate-every 80"


@dataclass(frozen=True)
class Part:
    """A name, what `winnow train` is asked for, the optimizer's steps, and the files to learn from and to watch with.

    asked: with the names of parts that have to be there in braces, for their directories.
    """

    name: str
    asked: str
    steps: int
    data: str = "train"
    held_out: str = "held-out"

    @property
    def needs(self) -> set[str]:
        """Parts that have to be there."""
        return set(NAMED.findall(self.asked))


PARTS = (
    Part("long", f"speed --cutoff 1.0 {ADAPTER}", 1200),  # full depth: the control of those below
    Part("speed-23", f"speed --cutoff 23 {ADAPTER}", 1200),
    Part("speed-23-none", f"speed --cutoff 23 --anchors none {ADAPTER}", 1200),
    Part("speed-15", f"speed --cutoff 15 {ADAPTER}", 1200),
    Part("speed-15-none", f"speed --cutoff 15 --anchors none {ADAPTER}", 1200),
    Part("heads", f"locret {HEADS}", 240),
    Part("zap", f"kvzap {ZAP}", 80),  # every text is read twice
    Part("gates", "duo --dtype bfloat16 --validate-every 100", 400),
    Part("long-heads", f"locret {HEADS} --adapter {{long}}", 240),
    # The control teaches, so that what is left between the two is what a prompt in fewer layers cannot say; and the end
    # of a prompt goes through all of them, or an answer's first tokens see nothing of it there.
    Part(
        "speed-23-taught",
        f"speed {TAUGHT} --begin {{speed-23}} --teacher {{long}} --learning-rate 2e-4 --validate-every 120",
        240,
        "taught",
    ),
    # What its teacher has drifted it has too; a few texts from the model as it was take much of that back.
    Part(
        "speed-23-text",
        f"speed {TAUGHT} --begin {{speed-23-taught}} --teacher base --learning-rate 1e-4 --validate-every 8",
        8,  # as few as bring text as near as the control
        "continued",
        "held-out-continued",
    ),
    # The same, and answers from the control, with long strings to copy among them.
    Part(
        "speed-23-both",
        f"speed {TAUGHT} --begin {{speed-23-taught}} --teacher {{long}} --learning-rate 2e-4 --validate-every 100",
        100,
        "both",
        "held-out-both",
    ),
    Part("speed-23-heads", f"locret {HEADS} --adapter {{speed-23-text}}", 240),
)


def main() -> None:
    """Parse the flags, and train what is not there, `--processes` at once; a part that fails ends the run."""
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="python -m recipes.smollm2.parts", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="directory of what is learnt from")
    parser.add_argument("--out", type=Path, required=True, help="a directory for the parts")
    parser.add_argument("--model", default="smollm2", help="default %(default)s")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}; default all")
    parser.add_argument("--steps", type=int, help="of each part, for a trial; default as many as each has")
    parser.add_argument("--processes", type=int, default=1, help="parts trained at once; default %(default)s")
    flags = parser.parse_args()
    chosen = [part for part in PARTS if not flags.only or part.name in flags.only]
    for part in chosen:
        for name in (part.data, part.held_out):
            if not (file := flags.data / f"{name}.jsonl").is_file():
                parser.error(f"{part.name} needs {file}, which is not there: python -m recipes.smollm2 writes it")
        lacking = part.needs - {each.name for each in chosen}
        if missing := [name for name in sorted(lacking) if not _done(flags.out / name)]:
            parser.error(f"{part.name} needs {', '.join(missing)}, not in {flags.out}: add what is missing to --only")
    if failed := train(chosen, flags.data, flags.out, flags.model, flags.steps, flags.processes):
        sys.exit(f"{failed.name} failed; its last lines are in {flags.out / failed.name}.txt")


def train(parts: Sequence[Part], data: Path, out: Path, model: str, steps: int | None, processes: int) -> Part | None:
    """Run what is not done, in order, each after the parts that it needs; returns the first that failed.

    Those that run go on to their end when one has failed.
    """
    out.mkdir(parents=True, exist_ok=True)
    waiting = [part for part in parts if not _done(out / part.name)]
    for part in parts:
        if part not in waiting:
            halve(out / part.name)  # where the run before was stopped just there
    running: dict[Part, subprocess.Popen[bytes]] = {}
    failed = None
    while running or (waiting and not failed):
        for part, process in list(running.items()):
            if process.poll() is not None:
                del running[part]
                failed = failed or (part if process.returncode else None)
                if not process.returncode:
                    halve(out / part.name)
                print(f"{part.name}: {'failed' if process.returncode else 'done'}", flush=True)
        under = {part.name for part in running}
        ready = [part for part in waiting if all(name not in under and _done(out / name) for name in part.needs)]
        for part in ready[: 0 if failed else processes - len(running)]:
            waiting.remove(part)
            running[part] = _start(command(part, data, out, model, steps), out / f"{part.name}.txt")
        time.sleep(0.2)
    return failed


def command(part: Part, data: Path, out: Path, model: str, steps: int | None) -> list[str]:
    """The arguments of `winnow` that train a part, or go on with it."""
    made = out / part.name
    if not (resume := last_checkpoint(made) is not None):
        shutil.rmtree(made, ignore_errors=True)  # stopped before anything was worth keeping
    asked = [NAMED.sub(lambda found: str(out / found[1]), word) for word in shlex.split(part.asked)]
    line = ["train", *asked, "--model", model, "--steps", str(steps or part.steps)]
    line += [str(data / f"{part.data}.jsonl"), "--validation", str(data / f"{part.held_out}.jsonl"), "--out", str(made)]
    return [*line, "--plot", str(out / f"{part.name}.png"), *(["--resume"] if resume else [])]


def halve(directory: Path) -> None:
    """Round the weights of a part to bfloat16, in which it ships; what is so stays as it is."""
    for file in directory.glob("*.safetensors"):
        tensors = load_file(file)
        if any(each.dtype != torch.bfloat16 for each in tensors.values()):
            rest = file.with_suffix(".half")
            save_file({name: each.bfloat16() for name, each in tensors.items()}, rest, metadata={"format": "pt"})
            rest.replace(file)


def _start(arguments: list[str], output: Path) -> subprocess.Popen[bytes]:
    print("winnow", shlex.join(arguments), flush=True)
    with output.open("ab") as file:
        return subprocess.Popen([sys.executable, "-m", "winnow", *arguments], stdout=file, stderr=subprocess.STDOUT)


def _done(directory: Path) -> bool:
    record = read_metadata(directory)
    return record is not None and bool(record["result"])


if __name__ == "__main__":
    main()
