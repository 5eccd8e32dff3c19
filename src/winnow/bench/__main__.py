"""`python -m winnow.bench`: decode and prefill speed against stock transformers, and what the machine allows."""

import json
import os
import platform
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import Progress

from winnow.bench.decode import CHUNK, measure_decode
from winnow.bench.prefill import measure_prefill
from winnow.bench.report import markdown, plot, table
from winnow.bench.shapes import SHAPES, Shape, random_model, shape_named
from winnow.bench.speed import STOCK, Measurement, Rates, machine_rates, typical
from winnow.errors import InputError, WinnowError
from winnow.plan import Plan
from winnow.runtime.decoder import Decoder
from winnow.runtime.loading import parse_device
from winnow.runtime.scorer import ModelScorer

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False)

Measure = Callable[[Decoder, Shape, list[Plan], int], tuple[list[Measurement], list[float]]]
FULL = str(Plan())
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}

ShapeName = Annotated[str, typer.Option("--shape", help=f"One of {', '.join(SHAPES)}; the weights are random.")]
Lengths = Annotated[str, typer.Option(help="Token counts, separated by commas.")]
Dtype = Annotated[str, typer.Option(help=f"Of weights and units: {', '.join(DTYPES)}.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads.  [default: torch's own choice]")]
Repeats = Annotated[int, typer.Option(min=2, help="Timed turns of each arm.")]
Warmup = Annotated[int, typer.Option(min=1, help="Turns of each arm that are not counted.")]
PlanTexts = Annotated[
    list[str] | None,
    typer.Option("--plan", "-p", metavar="PLAN", help="What Winnow runs; repeat it for several.  [default: full]"),
]
Json = Annotated[bool, typer.Option("--json", help="Print the records instead of the table.")]
Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the records there (JSON).")]


@app.command("decode")
def decode_command(
    shape: ShapeName = "qwen3-0.6b",
    lengths: Lengths = "64,8192,32768",
    dtype: Dtype = "bfloat16",
    device: Device = "cpu",
    threads: Threads = None,
    repeats: Repeats = 7,
    warmup: Warmup = 2,
    plan: PlanTexts = None,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Seconds per decode step after so many cached tokens."""

    def measure(
        decoder: Decoder, sizes: Shape, chosen: list[Plan], length: int
    ) -> tuple[list[Measurement], list[float]]:
        return measure_decode(decoder, sizes, chosen, length, repeats=repeats, warmup=warmup)

    settings = {"what": "decode", "chunk": None, "repeats": repeats, "warmup": warmup, "plans": plan or ["full"]}
    _run(shape, lengths, dtype, device, threads, settings, measure, as_json, out)


@app.command("prefill")
def prefill_command(
    shape: ShapeName = "qwen3-0.6b",
    lengths: Lengths = "2048,4096",
    dtype: Dtype = "bfloat16",
    device: Device = "cpu",
    threads: Threads = None,
    repeats: Repeats = 5,
    warmup: Warmup = 1,
    plan: PlanTexts = None,
    chunk: Annotated[int, typer.Option(min=1, help="Winnow's prompt tokens per step.")] = 512,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Seconds to prefill a prompt of so many tokens."""

    def measure(
        decoder: Decoder, sizes: Shape, chosen: list[Plan], length: int
    ) -> tuple[list[Measurement], list[float]]:
        return measure_prefill(decoder, sizes, chosen, length, repeats=repeats, warmup=warmup, chunk=chunk)

    settings = {"what": "prefill", "chunk": chunk, "repeats": repeats, "warmup": warmup, "plans": plan or ["full"]}
    _run(shape, lengths, dtype, device, threads, settings, measure, as_json, out)


@app.command("table")
def table_command(
    file: Annotated[Path, typer.Argument(help="Records of decode or prefill, written by --out.")],
    as_markdown: Annotated[bool, typer.Option("--markdown", help="As a Markdown page.")] = False,
) -> None:
    """Show records of decode or prefill again."""
    document = _read(file)
    if as_markdown:
        print(markdown(document), end="")
    else:
        _stdout().print(table(document))


@app.command("plot")
def plot_command(
    files: Annotated[list[Path], typer.Argument(help="Records of decode or prefill; a panel for each.")],
    out: Annotated[Path, typer.Option(metavar="PNG", help="Where to draw.")],
) -> None:
    """Draw records of decode or prefill: seconds over tokens."""
    plot([_read(file) for file in files], out)


def _run(
    name: str,
    lengths: str,
    dtype: str,
    device: str,
    threads: int | None,
    settings: dict[str, Any],
    measure: Measure,
    as_json: bool,
    out: Path | None,
) -> None:
    """Measure every length and show the records; they are written after each, so an interrupt loses one at most."""
    shape, counts = shape_named(name), parse_lengths(lengths)
    plans = list(dict.fromkeys(map(Plan.parse, settings["plans"])))
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is unknown; known: {', '.join(DTYPES)}")
    kind, where = DTYPES[dtype], parse_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    arguments = sys.argv[2:] if sys.argv[1:2] == ["bench"] else sys.argv[1:]  # `winnow bench` has these commands too
    command = f"python -m winnow.bench {shlex.join(arguments)}"
    document = {"command": command, "shape": name, "dtype": dtype, **settings, "machine": machine(where)}
    document |= {"complete": False, "rates": {}, "records": []}
    _write(out, document)
    screen = Console(stderr=True)
    try:
        with Progress(console=screen, disable=not screen.is_terminal, transient=True) as progress:
            task = progress.add_task(f"weights of {name}", total=len(counts) + 1)
            decoder = Decoder(random_model(shape, kind, where))
            for plan in plans:
                plan.validate(decoder.shape)
                plan.compute.prepare(ModelScorer(decoder, None, settings["chunk"] or CHUNK))
            samples, groups = [machine_rates(kind, where)], []
            for count in counts:
                progress.update(task, advance=1, description=f"{settings['what']} {count}")
                groups.append(measure(decoder, shape, plans, count))
                samples.append(machine_rates(kind, where))
                document |= _figures(groups, typical(samples))
                _write(out, document)
        document["complete"] = True
        _write(out, document)
    except KeyboardInterrupt:
        print("interrupted; this is what was finished", file=sys.stderr)
    if as_json:
        print(json.dumps(document, indent=2))
    elif document["records"]:
        _stdout().print(table(document))
    if not document["complete"]:
        raise typer.Exit(130)


def _figures(groups: list[tuple[list[Measurement], list[float]]], rates: Rates) -> dict[str, Any]:
    """The records of what was measured, each next to stock's and, where it ran, full attention's at the same length."""
    records = []
    for measured, differences in groups:
        arms = {each.arm: each for each in measured}
        for each, difference in zip(measured, differences, strict=True):
            record = {**each.to_dict(rates, arms[STOCK]), "logit_difference": difference}
            if FULL in arms and len(arms) > 2:
                record["ratio_to_full"] = each.ratio_to(arms[FULL])
            records.append(record)
    return {"rates": asdict(rates), "records": records}


def _write(out: Path | None, document: dict[str, Any]) -> None:
    if out is None:
        return
    try:
        out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror}; give --out a path that can") from error


def parse_lengths(text: str) -> list[int]:
    """ "64,8192" -> [64, 8192]; raises InputError."""
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"lengths {text!r} are not whole numbers separated by commas") from error
    if min(counts) < 1:
        raise InputError(f"lengths {text!r} must be at least 1")
    return counts


def machine(device: torch.device) -> dict[str, Any]:
    """The device by name, threads, and versions of what the figures depend on."""
    versions = {"python": platform.python_version()}
    for package in ("winnow-llm", "torch", "transformers", "numba"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "none"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    return {"device": name, "cores": os.cpu_count(), "threads": torch.get_num_threads(), "versions": versions}


def _stdout() -> Console:
    """A console as wide as the table where the output is no terminal."""
    return Console(width=None if sys.stdout.isatty() else 120)


def _cpu_name() -> str:
    """The model name where the system tells it (Linux), else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _read(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file} holds no records: {error}") from error
    if not isinstance(document, dict) or "what" not in document:
        raise InputError(f"{file} holds no records of decode or prefill")
    return document


def main() -> None:
    """Run a command; what Winnow raises on purpose is one line and exit code 2."""
    try:
        app()
    except WinnowError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
