"""Figures of docs/results/engine.md: what the engine takes for tokens, of one text and of many at once."""

from __future__ import annotations

from .tables import (
    Block,
    Columns,
    Record,
    code,
    count,
    key,
    machine,
    mib,
    milliseconds,
    number,
    one,
    percent,
    table,
)

STEPS: Columns = {
    "plan": code("plan"),
    "median, ms": milliseconds("median_s", 2),
    "least, ms": milliseconds("min_s", 2),
    "mean, ms": milliseconds("mean_s", 2),
    "of full, x": lambda row: f"{row['ratio']:.2f} ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})",
    "units read": count("units"),
}
OVERHEAD: Columns = {
    "plan": code("plan"),
    "step, ms": milliseconds("step_s", 2),
    "kernels, ms": milliseconds("kernels_s", 2),
    "outside, ms": milliseconds("outside_s", 2),
    "least, ms": milliseconds("least_s", 2),
    "kernels entered": lambda row: f"{row['kernels']:g}",
    "Python calls": count("calls"),
    "calls per layer": number("calls_per_layer", 1),
}
TOGETHER: Columns = {
    "plan": key("name"),
    "step, ms": milliseconds("step_s"),
    "tokens/s": number("tokens_per_s", 1),
    "of one, x": lambda row: (
        "" if row["of_one"] is None else f"{row['of_one']:.2f} ({row['of_one_low']:.2f} to {row['of_one_high']:.2f})"
    ),
    "floor, ms": lambda row: "" if row["floor_s"] is None else f"{1000 * row['floor_s']:.1f}",
    "of the floor, x": number("of_floor", 2),
    "of transformers, x": number("of_stock", 1),
}
ATTENTION: Columns = {
    "plan": code("plan"),
    "step, ms": milliseconds("step_s"),
    "of full, x": lambda row: f"{row['step_x']:.2f} ({row['step_low']:.2f} to {row['step_high']:.2f})",
    "attention, ms": milliseconds("attention_s"),
    "of full's, x": lambda row: f"{row['attention_x']:.2f} ({row['attention_low']:.2f} to {row['attention_high']:.2f})",
    "units, MiB": lambda row: f"{row['units_bytes'] / 2**20:,.0f}",
    "read, GB/s": number("gb_s", 1),
    "of the machine's, x": number("of_rate", 2),
}
ARRIVAL: Columns = {
    "engine": code("setting"),
    "turns": key("turns"),
    "longest gap, x": number("longest", 2),
    "of all turns, x": number("worst", 2),
    "median gap, x": number("typical", 2),
    "TTFT, s": number("ttft_s", 2),
    "of alone, x": number("of_alone", 2),
}
FORKS: Columns = {
    "samples": count("samples"),
    "by formula, MiB": mib("reserved_bytes", 1),
    "if apart, MiB": mib("apart_bytes", 1),
    "grown by, MiB": mib("grown_bytes", 1),
    "process, MiB": mib("after_bytes", 1),
}
MAPPED: Columns = {
    "plan": code("plan"),
    "prompt tokens": count("length"),
    "prefill, tokens/s": count("tokens_per_s"),
    "step, ms": milliseconds("step_s", 1),
    "read, %": percent("read_share", 2),
    "units, MiB": mib("unit_bytes", 1),
    "files, MiB": mib("disk_bytes", 1),
    "held, MiB": mib("total_bytes", 1),
    "process before, MiB": mib("before_bytes", 1),
    "at most, MiB": lambda row: f"{max(row['prefill_bytes'], row['decode_bytes']) / 2**20:,.1f}",
    "grown by, MiB": mib("grown_bytes", 1),
    "the same answer": lambda row: {None: "", True: "yes", False: "no"}[row["same"]],
}


def steps(told: Record) -> str:
    """A table per length, and what could not be run."""
    rows, parts = told["summary"], []
    for length in dict.fromkeys(row["length"] for row in rows):
        parts += [f"After {length:,} tokens:", table(STEPS, [row for row in rows if row["length"] == length])]
    parts.append(
        f"{told['model']}, {told['repeats']} turns of {told['steps']} steps; of full: a turn's median over full "
        f"attention's in the same turn, the median turn's, with the least and the most; {machine(told)}."
    )
    return "\n\n".join([*parts, *(f"Left out: `{plan}`: {reason}" for plan, reason in told["skipped"].items())])


def overhead(told: Record) -> str:
    """The time of a step that kernels do not take."""
    about = f"{told['model']} after {told['length']:,} tokens, {told['repeats']} turns of {told['steps']} steps"
    return f"{table(OVERHEAD, told['summary'])}\n\n{about}; {machine(told)}."


def together(told: Record) -> str:
    """Many sequences beside one, the floor and transformers."""
    about = (
        f"{told['model']}, {told['sequences']} sequences after {told['length']:,} tokens each, {told['repeats']} turns "
        f"of {told['steps']} steps; {machine(told)}."
    )
    missing = [] if told["stock_error"] is None else [f"transformers is left out: {told['stock_error']}"]
    return "\n\n".join([table(TOGETHER, told["summary"]), about, *missing])


def attention(told: Record) -> str:
    """Attention's part of a step by how units are held."""
    return (
        f"{table(ATTENTION, told['summary'])}\n\n{told['model']} with random weights ({told['weights']}), "
        f"{told['length']:,} random units cached, {told['repeats']} turns of {told['steps']} steps; of full: within a "
        f"turn, the median turn's, with the least and the most; attention: a step less the same step over two units; "
        f"{machine(told)}."
    )


def arrival(told: Record) -> str:
    """Gaps and TTFT by the limits of a step."""
    given_up = [f"`{row['setting']}`" for row in told["summary"] if row["of_alone"] is None]
    about = (
        f"{told['model']}: {told['length']:,} tokens arrive while {told['sequences']} sequences decode after "
        f"{told['running']:,} each, whose gap is {1000 * told['summary'][0]['undisturbed_s']:.1f} ms until then; "
        f"max_step_s is {told['slower']:g} times what it was before all of them; {machine(told)}."
    )
    if given_up:
        about += f" Without a TTFT: given up after {told['patience']:g} s, {', '.join(given_up)}."
    return f"{table(ARRIVAL, told['summary'])}\n\n{about}"


def forks(told: Record) -> str:
    """Memory of samples of one prompt."""
    most = max(told["summary"], key=lambda row: row["samples"])
    least = one(told["summary"], samples=min(row["samples"] for row in told["summary"]))
    return (
        f"{table(FORKS, told['summary'])}\n\n{told['model']}, `{told['plan']}`: a prompt of {told['length']:,} tokens "
        f"and {told['steps']} of each sample. {most['samples']} samples take "
        f"{most['reserved_bytes'] / least['reserved_bytes']:.2f} times the units of {least['samples']}; "
        f"{machine(told)}."
    )


def mapped(told: Record) -> str:
    """A context in files beside one in memory."""
    return (
        f"{table(MAPPED, told['summary'])}\n\n{told['model']} with random weights, {told['steps']} steps after the "
        f"prompt; {told['resident_mib']} MiB of units in memory at once; {machine(told)}."
    )


BLOCKS = {
    "engine-steps": Block(steps, ("engine-steps.json",)),
    "engine-overhead": Block(overhead, ("engine-overhead.json",)),
    "engine-together": Block(together, ("engine-together.json",)),
    "engine-together-qwen3": Block(together, ("engine-together-qwen3.json",)),
    "engine-attention": Block(attention, ("engine-attention.json",)),
    "engine-arrival": Block(arrival, ("engine-arrival.json",)),
    "engine-mapped": Block(mapped, ("engine-mapped.json",)),
    "engine-forks": Block(forks, ("engine-forks.json",)),
}
