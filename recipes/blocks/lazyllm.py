"""Figures of docs/results/lazyllm.md, and what the README says of them."""

from __future__ import annotations

from .tables import (
    Block,
    Column,
    Columns,
    Record,
    code,
    count,
    interval,
    key,
    mib,
    milliseconds,
    number,
    percent,
    scored,
    table,
)

SWEEP: Columns = {
    "task": key("task"),
    "plan": code("plan"),
    "score, %": percent("score"),
    "95 %": interval,
    "of full, %": lambda row: "-" if row["relative_score"] is None else f"{100 * row['relative_score']:.1f}",
    "TTFT, x": number("ttft_speedup", 2),
    "generation, x": number("generation_speedup", 2),
    "rows, %": percent("rows_share"),
    "FLOPs, %": percent("flops_share"),
    "prompt computed, %": percent("prompt_computed"),
    "in the last layer, %": percent("prompt_computed_last"),
    "revived rows": count("revived_rows"),
    "beside units, MiB": mib("aux_bytes"),
    "peak bytes, x": number("peak_ratio", 2),
    "n": key("examples"),
}
GENERATION: Columns = {
    "plan": code("plan"),
    "rows, %": lambda row: f"{100 * row['stats']['rows_computed'] / row['stats']['rows_full']:.1f}",
    "TTFT, s": number("ttft_s", 2),
    "of full": number("ttft_ratio", 3),
    "decode step, ms": milliseconds("step_s"),
    "step of full": number("step_ratio", 3),
    "whole generation, s": number("total_s", 2),
    "generation of full": number("total_ratio", 3),
    "revived rows": lambda row: f"{row['stats']['revived_rows']:,}",
    "most units, MiB": lambda row: mib("peak_cache_bytes", 0)(row["stats"]),
    "beside units, MiB": lambda row: mib("aux_bytes", 0)(row["stats"]),
}
ACCURACY: Columns = {
    "task": key("task"), "plan": code("plan"), "score, % (95 %)": scored, "n": key("examples"),
}  # fmt: skip
STEPS = (0, 1, 2, 4, 8, 16, 32)  # of a generation; and its last one


def sweep(document: Record) -> str:
    return table(SWEEP, document["summary"])


def depth(document: Record) -> str:
    """A row per keep ratio, a column per pruning layer."""
    full, *cells = document["cells"]
    layers = sorted({cell["layer"] for cell in cells})
    columns: dict[str, Column] = {"keep": lambda row: f"{row['keep']:g}"}
    columns |= {f"layer {layer}": percent(str(layer), 0) for layer in layers}
    rows: dict[float, Record] = {}
    for cell in cells:
        rows.setdefault(cell["keep"], {"keep": cell["keep"]})[str(cell["layer"])] = cell["score"]
    head = (
        f"Score, %, mean over the tasks, {full['examples']} examples a cell; full attention: {100 * full['score']:.1f}."
    )
    return f"{head}\n\n{table(columns, rows.values())}"


def usage(document: Record) -> str:
    """A row per stage of the layers, columns for steps further and further apart."""
    last = len(document["running"]) - 1
    steps = [*(step for step in STEPS if step < last), last]
    columns: dict[str, Column] = {"layers": lambda stage: f"{stage['first']} to {stage['last']}"}
    columns |= {f"step {step}": _reached(step) for step in steps}
    head = f"Prompt tokens computed so far, % (step 0 is the prefill; mean over {document['running'][0]} answers)."
    return f"{head}\n\n{table(columns, document['stages'])}"


def _reached(step: int) -> Column:
    return lambda stage: f"{100 * stage['share'][step]:.0f}"


def sparsity(document: Record) -> str:
    """A row per layer, then the mean."""
    columns: dict[str, Column] = {"layer": lambda row: "mean" if row["layer"] is None else str(row["layer"])}
    for mass in document["layers"][0]["holds"]:
        columns[f"{100 * float(mass):g} % is on, %"] = _holding(mass)
    columns["less than an equal part, %"] = percent("below_uniform")
    head = (
        f"How many of the prompt's tokens, the most attended first, hold a part of the last token's attention; and how "
        f"many get less than an equal part. {document['prompts']} prompts of {document['length']:,} tokens."
    )
    return f"{head}\n\n{table(columns, document['layers'])}"


def _holding(mass: str) -> Column:
    return lambda profile: f"{100 * profile['holds'][mass]:.2f}"


def accuracy(document: Record) -> str:
    return table(ACCURACY, document["accuracy"])


def generation(document: Record) -> str:
    return table(GENERATION, document["records"])


def full(scores: Record) -> list[tuple[str, Record]]:
    """Full attention's accuracy by task."""
    return [(row["task"], row) for row in scores["accuracy"] if row["plan"] == "full"]


TEXTS = ("prose", "docs", "code", "dialogue")
REVIVE: Columns = {
    "text": key("kind"),
    "plan": code("plan"),
    "tokens": count("tokens"),
    "KL, nats": number("kl", 3),
    "top-1, %": percent("top1"),
    "perplexity": number("perplexity_plan", 2),
    "of full": number("perplexity_full", 2),
}


def revive(*told: Record) -> str:
    """How close decode steps stay to full attention's, by how many tokens a step may revive; a document per text."""
    rows = [{"kind": kind, **row} for kind, each in zip(TEXTS, told, strict=True) for row in each["fidelity"]]
    prefilled = f"{told[0]['fidelity'][0]['prompt_tokens']:,} tokens prefilled, the others fed one by one"
    return f"{table(REVIVE, rows)}\n\n{told[0]['model']}, {prefilled}; commit {told[0]['commit']}."


BLOCKS = {
    "lazyllm-table1": Block(sweep, ("lazyllm-table1.json",)),
    "lazyllm-sweep": Block(sweep, ("lazyllm-sweep.json",)),
    "lazyllm-depth": Block(depth, ("lazyllm-depth.json",)),
    "lazyllm-usage": Block(usage, ("lazyllm-usage.json",)),
    "lazyllm-sparsity": Block(sparsity, ("lazyllm-sparsity.json",)),
    "lazyllm-accuracy": Block(accuracy, ("lazyllm-accuracy.json",)),
    "lazyllm-generation": Block(generation, ("lazyllm-generation.json",)),
    "lazyllm-revive": Block(revive, tuple(f"lazyllm-revive-{kind}.json" for kind in TEXTS)),
}
