"""Figures of docs/results/gguf.md: a GGUF file's time, memory and fidelity."""

from __future__ import annotations

from .tables import Block, Column, Columns, Record, code, count, key, machine, milliseconds, number, percent, table


def speed(told: Record) -> str:
    """Prefill and token times by arm and length, and how they compare with llama.cpp at its best."""
    rows: dict[str, Record] = {}
    for row in told["summary"]:
        rows.setdefault(row["arm"], {"arm": row["arm"]})[str(row["length"])] = row
    lengths = sorted({row["length"] for row in told["summary"]})
    prefill, token = (
        {f"{what} {length:,}, {unit}": _time(told, length, figure, factor) for length in lengths}
        for what, unit, figure, factor in (("prefill", "s", "prefill_s", 1), ("a token after", "ms", "token_s", 1000))
    )
    arm: Columns = {"arm": code("arm")}
    about = f"{_medians(told)}; x: of the least of llama.cpp's arms; {machine(told)}."
    return "\n\n".join([table({**arm, **prefill}, rows.values()), table({**arm, **token}, rows.values()), about])


def best(told: Record) -> str:
    """The same of all other arms, beside the least times of llama.cpp, whichever of its arms has them."""
    lengths = sorted({row["length"] for row in told["summary"]})
    rows: dict[str, Record] = {"llama.cpp": {"arm": "llama.cpp, the least of its arms"}}
    for length, least in told["llama.cpp at its best"].items():
        rows["llama.cpp"][length] = {figure: each["value"] for figure, each in least.items()}
    for row in told["summary"]:
        if not row["arm"].startswith("llama.cpp"):
            rows.setdefault(row["arm"], {"arm": f"`{row['arm']}`"})[str(row["length"])] = row
    columns: Columns = {"": key("arm")}
    columns |= {f"prefill {length:,}, s": _time(told, length, "prefill_s", 1) for length in lengths}
    columns |= {f"a token after {length:,}, ms": _time(told, length, "token_s", 1000) for length in lengths}
    about = f"{_medians(told)}; x: of llama.cpp's; {machine(told)}."
    return f"{table(columns, rows.values())}\n\n{about}"


def _medians(told: Record) -> str:
    steps = told["summary"][0]["steps"] // told["turns"]
    return f"Medians of {told['turns']} turns, a token: of the mean of {steps} steps"


def _time(told: Record, length: int, figure: str, factor: float) -> Column:
    best = told["llama.cpp at its best"][str(length)][figure]["value"]
    return lambda row: f"{factor * row[str(length)][figure]:.2f} ({row[str(length)][figure] / best:.2f}x)"


FIDELITY: Columns = {
    "text": key("kind"),
    "arm": code("job"),
    "tokens": count("tokens"),
    "top-1, %": percent("top1", 2),
    "KL, nats": number("kl", 5),
    "perplexity": number("perplexity", 3),
    "x of float32's": number("perplexity_ratio", 4),
}
BUSY: Columns = {
    "kernels on": key("arm"),
    "quiet, ms": milliseconds("quiet_s"),
    "of all, x": number("quiet_of_all", 2),
    "busy, ms": milliseconds("busy_s"),
    "of all and quiet, x": number("slowdown", 2),
}
DECODE: Columns = {"arm": code("arm"), "median, ms": milliseconds("median_s"), "mean, ms": milliseconds("mean_s")}


def fidelity(told: Record) -> str:
    """Against the float32 model of the same weights, teacher-forced."""
    return f"{table(FIDELITY, told['rows'])}\n\n{told['model']} against {told['reference']}; {machine(told)}."


def decode(told: Record) -> str:
    """Decode steps over random units, with weights held otherwise."""
    about = f"{told['shape']}, a token after {told['length']:,}; {machine(told)}."
    return f"{table(DECODE, told['records'])}\n\n{about}"


def busy(told: Record) -> str:
    """Decode steps alone and beside busy processes, by how many threads take them."""
    turns = f"medians of {told['repeats']} turns of {told['new']} tokens"
    paired = "x: the median of the turns' ratios"
    about = f"A token after {told['length']:,}, {turns}; {paired}; {machine(told)}."
    return f"{table(BUSY, told['summary'])}\n\n{about}"


BLOCKS = {
    "gguf-speed": Block(speed, ("gguf-speed.json",)),
    "gguf-speed-avx2": Block(speed, ("gguf-speed-avx2.json",)),
    "gguf-best": Block(best, ("gguf-speed.json",)),
    "gguf-fidelity": Block(fidelity, ("gguf-fidelity.json",)),
    "int4-fidelity": Block(fidelity, ("int4-fidelity.json",)),
    "int4-decode": Block(decode, ("int4-decode.json",)),
    "busy": Block(busy, ("busy.json",)),
}
