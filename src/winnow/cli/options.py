"""The options that several commands share, each declared once."""

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str, typer.Option("--model", "-m", metavar="MODEL", help='"needle" (bundled), a model directory, or a hub id.')
]
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
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads.  [default: torch's own choice]")]
PrefillChunk = Annotated[int, typer.Option(min=1, help="Prompt tokens computed at a time.")]
Seed = Annotated[int, typer.Option(help="Of the examples; the same seed makes the same ones for every plan.")]

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
CHUNK = 512
