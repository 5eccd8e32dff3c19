"""The tables of `winnow bench fidelity`: `python -m recipes.frontier.fidelity FILE.json --page PAGE.md`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from recipes.pages import fill

TITLE = "Fidelity on real texts"
COMMAND = """```
winnow bench fidelity --data DIR --length {length} --fed {fed} --seed {seed} --examples N \\
  --out docs/results/fidelity.json --plot docs/results/fidelity.png
```

![KL by plan and domain](fidelity.png)
"""
HEADINGS = ("KL (95 %)", "top-1, % (95 %)", "NLL", "perplexity", "rows, %", "memory, %", "units read, %")
Row = dict[str, Any]


def markdown(document: dict[str, Any]) -> str:
    """All domains in one table, then a table for each, and plans by domain: KL alone."""
    rows = document["summary"]
    domains = [*dict.fromkeys(row["domain"] for row in rows)]
    by_plan = {(row["plan"], row["domain"]): row for row in rows}
    plans = list(dict.fromkeys(row["plan"] for row in rows))
    order = sorted(plans, key=lambda plan: by_plan[plan, "all"]["kl"]["mean"])
    lines = [COMMAND.format(**document), "## KL by domain, nats per token", "", _head(["plan", *domains])]
    for plan in order:
        lines.append(_line(f"`{plan}`", *(f"{by_plan[plan, domain]['kl']['mean']:.4f}" for domain in domains)))
    for domain in (domains[-1], *domains[:-1]):
        lines += ["", f"## {domain}: {by_plan[plans[0], domain]['windows']} windows", "", _head(["plan", *HEADINGS])]
        lines += [_line(f"`{plan}`", *_cells(by_plan[plan, domain])) for plan in order]
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    about = (
        f"Windows of {document['length']:,} tokens, of which {document['fed']} are fed one by one and the others "
        "prefilled; the same windows for all plans. KL(full || plan) of the next token and NLL of the text in nats per "
        "token; top-1: both find the same token likeliest; 95 %: windows resampled. Rows computed, the most bytes "
        "held, of units and all that a plan holds beside them, and units read by decode steps: % of full attention's. "
        f"{document['model']}, {document['dtype']}, "
        f"{document['threads']} threads, seed {document['seed']}; {versions}."
    )
    return "\n".join([*lines, "", about])


def _head(names: list[str]) -> str:
    return f"{_line(*names)}\n| --- |" + " ---: |" * (len(names) - 1)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(row: Row) -> list[str]:
    kl, top1 = row["kl"], row["top1"]
    return [
        f"{kl['mean']:.4f} ({kl['low']:.3f} to {kl['high']:.3f})",
        f"{100 * top1['mean']:.1f} ({100 * top1['low']:.0f} to {100 * top1['high']:.0f})",
        f"{row['nll_plan']['mean']:.3f}",
        f"{row['perplexity']:.2f}",
        *(f"{100 * row[name]:.1f}" for name in ("rows_share", "total_share", "units_share")),
    ]


def main() -> None:
    """Parse the flags; without --page the tables are printed."""
    parser = argparse.ArgumentParser(prog="python -m recipes.frontier.fidelity", description=__doc__)
    parser.add_argument("file", type=Path, help="what winnow bench fidelity --out wrote")
    parser.add_argument("--page", type=Path)
    flags = parser.parse_args()
    document = json.loads(flags.file.read_text(encoding="utf-8"))
    if document.get("command") != "bench fidelity" or not document["summary"]:
        parser.error(f"{flags.file} is not the --out file of winnow bench fidelity, or no window was finished")
    if flags.page:
        fill(flags.page, TITLE, markdown(document))
    else:
        print(markdown(document))


if __name__ == "__main__":
    main()
