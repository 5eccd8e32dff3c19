"""The table and the picture of the trainings: `python -m recipes.smollm2.report PARTS --json FILE --plot PNG`."""

from __future__ import annotations

import json
from pathlib import Path

from recipes.blocks.smollm2 import markdown
from recipes.reporting import Record, write_report

from winnow.cli.draw import new_figure, plain, save
from winnow.cli.train_plot import running, series
from winnow.runtime.adapters import read_metadata

from .parts import PARTS

# By its title, of which parts a panel is, and the figure that it draws.
PANELS = {
    "adapters: loss": ("adapter", "loss"),
    "with a teacher: KL from it": ("taught", "kl"),
    "heads: loss": ("heads", "loss"),
    "heads: overlap of the best tenth": ("heads", "overlap"),
}
SMOOTHED = 3  # lines of a log


def read(directory: Path) -> list[Record]:
    """Of every part that is done, in the order of the recipe, its record and its log."""
    found = [(part, directory / part.name, read_metadata(directory / part.name)) for part in PARTS]
    return [
        {"part": part.name, "asked": part.asked, **record, "log": _lines(place / "log.jsonl")}
        for part, place, record in found
        if record and record["result"]
    ]


def _lines(log: Path) -> list[Record]:
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def plot(records: list[Record], path: Path) -> None:
    """What was learnt over steps, a panel per figure: lines for what is learnt from, dots for what is held out."""
    kinds = {kind: [each for each in records if _kind(each) == kind] for kind, _ in PANELS.values()}
    drawn = [(title, name, kinds[kind]) for title, (kind, name) in PANELS.items() if kinds[kind]]
    figure = new_figure(4.4 * len(drawn), 4.2)
    for axis, (title, name, mine) in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True):
        for place, record in enumerate(mine):
            steps, values = series(record["log"], name)
            axis.plot(steps, running(values, SMOOTHED), color=f"C{place}", linewidth=1.6, label=record["part"])
            held_out = [{"step": line["step"], **line["held_out"]} for line in record["log"] if "held_out" in line]
            axis.plot(*series(held_out, name), "o", color=f"C{place}")
        axis.set(title=title, xlabel="step")
        axis.legend(frameon=False, fontsize=8)
        plain(axis)
    save(figure, path)


def _kind(record: Record) -> str:
    """Which panels draw a part: none of what learns neither as an adapter nor as heads do."""
    held_out = record["result"]["held_out"]
    if "kl" in held_out:
        return "taught" if record.get("teacher") else "adapter"
    return "heads" if "overlap" in held_out else ""


if __name__ == "__main__":
    write_report("recipes.smollm2", __doc__, read, markdown, plot)
