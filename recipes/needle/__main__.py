"""Make the bundled model: `python -m recipes.needle --corpus DIR --out DIR`; the same command goes on after a stop.

The model is written to DIR/model of --out.
"""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from pathlib import Path

from .config import STAGES, TINY_STAGES, ModelConfig, RunConfig, Stage
from .export import export
from .train import train


def main() -> None:
    """Parse the flags into a `RunConfig` and train."""
    parser = argparse.ArgumentParser(prog="python -m recipes.needle", description=__doc__)
    defaults = {f.name: f.default for f in fields(RunConfig)}
    parser.add_argument("--corpus", type=Path, required=True, help="directory of books, textbooks and docs .txt.xz")
    parser.add_argument("--out", type=Path, required=True, help="cache, checkpoints and log")
    for name in ("processes", "threads", "step_tokens", "text_mb", "seed"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=defaults[name], help="default %(default)s")
    parser.add_argument("--device", default="cpu", help="cpu or cuda; with cuda use --processes 1")
    parser.add_argument("--scale", type=float, default=1.0, help="multiply the tokens of every stage")
    parser.add_argument("--hidden", type=int, default=ModelConfig.hidden, help="width; the MLP is three times as wide")
    parser.add_argument("--layers", type=int, default=ModelConfig.layers)
    parser.add_argument("--eager", action="store_true", help="do not compile the training forward")
    shorter = parser.add_mutually_exclusive_group()
    shorter.add_argument(
        "--until", choices=[s.name for s in STAGES], help="the last stage; its rate falls to a fortieth"
    )
    shorter.add_argument("--tiny", action="store_true", help="two short stages, to test the recipe in seconds")
    flags = parser.parse_args()
    config = RunConfig(
        corpus=flags.corpus, out=flags.out, processes=flags.processes, threads=flags.threads, device=flags.device,
        step_tokens=flags.step_tokens, text_mb=flags.text_mb, seed=flags.seed, compiled=not (flags.eager or flags.tiny),
        model=replace(ModelConfig(), hidden=flags.hidden, mlp=3 * flags.hidden, layers=flags.layers),
    )  # fmt: skip
    stages = TINY_STAGES if flags.tiny else until(flags.until) if flags.until else STAGES
    train(replace(config, stages=tuple(replace(s, tokens=int(s.tokens * flags.scale)) for s in stages)))
    export(config.out, config.out / "model")


def until(name: str) -> tuple[Stage, ...]:
    """The stages up to `name`, whose rate falls to a fortieth: the whole course ends at a low rate too."""
    stages = STAGES[: [s.name for s in STAGES].index(name) + 1]
    return (*stages[:-1], replace(stages[-1], lr_end=stages[-1].lr / 40))


if __name__ == "__main__":
    main()
