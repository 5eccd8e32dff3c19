"""docs/results/gguf.md from the JSON files beside it: `python -m recipes.packed.page docs/results`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recipes.pages import fill

TITLE = "A GGUF file: time, memory, fidelity"


def main(folder: Path) -> None:
    """Fill the page with a section for every file of figures that is there."""
    sections = {
        "gguf-speed.json": speed,
        "gguf-fidelity.json": fidelity,
        "int4-fidelity.json": fidelity,
        "int4-decode.json": decode,
    }
    found = [(name, make) for name, make in sections.items() if (folder / name).is_file()]
    made = [make(json.loads((folder / name).read_text(encoding="utf-8")), name) for name, make in found]
    fill(folder / "gguf.md", TITLE, "\n\n".join(made))


def speed(told: dict[str, Any], name: str) -> str:
    """Prefill and token times by arm and length, and how they compare with llama.cpp at its best."""
    lengths = sorted({row["length"] for row in told["summary"]})
    arms = list(dict.fromkeys(row["arm"] for row in told["summary"]))
    by_place = {(row["arm"], row["length"]): row for row in told["summary"]}
    lines = []
    for figure, unit, factor in (("prefill_s", "s", 1), ("token_s", "ms", 1000)):
        what = "prefill" if figure == "prefill_s" else "a token after"
        best = [told["llama.cpp at its best"][str(length)][figure]["value"] for length in lengths]
        rows = []
        for arm in arms:
            values = [by_place[arm, length][figure] for length in lengths]
            cells = [f"{factor * v:.2f} ({v / b:.2f}x)" for v, b in zip(values, best, strict=True)]
            rows.append([f"`{arm}`", *cells])
        heads = ["arm", *(f"{what} {length:,}, {unit}" for length in lengths)]
        lines.append(table(heads, rows))
    about = f"`{name}`; medians of {told['turns']} turns, x: of the least of llama.cpp's arms; {machine(told)}."
    return "\n\n".join(["## Time", about, *lines])


def fidelity(told: dict[str, Any], name: str) -> str:
    """Against the float32 model of the same weights, teacher-forced."""
    rows = [
        [row["kind"], f"`{row['job']}`", f"{row['tokens']:,}", f"{100 * row['top1']:.2f}", f"{row['kl']:.5f}",
         f"{row['perplexity']:.3f}", f"{row['perplexity_ratio']:.4f}"]
        for row in told["rows"]
    ]  # fmt: skip
    heads = ["text", "arm", "tokens", "top-1, %", "KL, nats", "perplexity", "x of float32's"]
    about = f"`{name}`: {told['model']} against {told['reference']}; {machine(told)}."
    return "\n\n".join([f"## Fidelity: {told['model']}", about, table(heads, rows)])


def decode(told: dict[str, Any], name: str) -> str:
    """Decode steps over random units, with weights held otherwise."""
    rows = [
        [f"`{row['arm']}`", f"{1000 * row['median_s']:.1f}", f"{1000 * row['mean_s']:.1f}"]
        for row in told["records"]
    ]  # fmt: skip
    about = f"`{name}`: {told['shape']}, a token after {told['length']:,}; {machine(told)}."
    return "\n\n".join(["## Rounded to 4 bits", about, table(["arm", "median, ms", "mean, ms"], rows)])


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine(told: dict[str, Any]) -> str:
    return f"{told['machine']['threads']} threads of an {told['machine']['device']}, commit {told.get('commit')}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
