"""`winnow inspect-model`: what a model is, and how its weights are held."""

from dataclasses import asdict
from typing import Any

from rich.console import Group
from rich.table import Table

from winnow.cli.commands.models import InspectModel
from winnow.cli.deliver import Record, deliver
from winnow.cli.tables import Column, facts, table_of
from winnow.cli.terminal import size
from winnow.evaluation.evaluate import environment
from winnow.models.report import HeldWeights, WeightsReport, weights_report
from winnow.runtime.llm import LLM

HELD: list[Column[HeldWeights]] = [
    Column("tensors", lambda row: row.tensors, ","),
    Column("values", lambda row: row.values, ","),
    Column("size", lambda row: size(row.bytes)),
]


def inspect_model(options: InspectModel) -> int:
    """Print what a model is; returns the exit code."""
    llm = options.load()
    report, facts, about = report_of(llm), facts_of(llm), environment(llm, options.model_name)
    held = asdict(report) | {"bytes": report.bytes, "packed_bytes": report.packed_bytes}
    shown = Group(_facts_table(facts, about), "", weights_table(report))
    return deliver(Record("inspect-model", {**facts, "weights": held}, shown, about=about), options)


def report_of(llm: LLM) -> WeightsReport:
    return weights_report(llm.model, llm.file_types, llm.file_bytes)


def facts_of(llm: LLM) -> dict[str, Any]:
    """What the model is, and what its cache takes under full attention."""
    shape, tokenizer = llm.decoder.shape, llm.tokenizer
    windows = [window for window in shape.windows if window is not None]
    per_token = shape.kv_heads * shape.unit_bytes
    ends = sorted(llm.end_tokens())
    names = [None] * len(ends) if tokenizer is None else tokenizer.convert_ids_to_tokens(ends)
    return {
        "layers": shape.layers,
        "layers_with_window": len(windows),
        "window": max(windows, default=None),
        "q_heads": shape.q_heads,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden": shape.hidden,
        "vocabulary": shape.vocab,
        "positions": shape.max_positions,
        "rope": llm.model.config.rope_parameters,
        "end_tokens": [{"id": end, "token": name} for end, name in zip(ends, names, strict=True)],
        "chat_template": bool(tokenizer is not None and tokenizer.chat_template),
        "unit_bytes": shape.unit_bytes,
        "bytes_per_1000_tokens": 1000 * per_token * (shape.layers - len(windows)),
        "window_bytes": per_token * sum(window - 1 for window in windows),
    }


def weights_line(report: WeightsReport) -> str:
    """`weights: 87.2 MiB packed 4 and 8 bit, 0.1 MiB floats; 87.4 MiB in the file`"""
    floats = report.bytes - report.packed_bytes
    bits = " and ".join(map(str, report.packed_bits))
    parts = [f"{size(report.packed_bytes)} packed {bits} bit"] if bits else []
    parts += [f"{size(floats)} floats"] if floats else []
    file = "" if report.file_bytes is None else f"; {size(report.file_bytes)} in the file"
    return f"weights: {', '.join(parts)}{file}"


def weights_table(report: WeightsReport) -> Table:
    """A row for all weights that are held alike."""
    names = {
        "weights": lambda row: row.what,
        "in the file": lambda row: row.type or "-",
        "computed by": lambda row: row.kernel,
    }
    return table_of(report.rows, names, HELD, title=weights_line(report), note=_crossover(report))


def _crossover(report: WeightsReport) -> str:
    found = ", ".join(f"{rows} rows ({form})" for form, rows in report.crossover.items())
    return f"multiplied packed, as measured here: up to {found}" if found else ""


def _facts_table(known: dict[str, Any], about: dict[str, Any]) -> Table:
    windows = known["layers_with_window"]
    shown = {
        "architecture": f"{about['architecture']}, {about['dtype']}, on {about['device']}",
        "layers": f"{known['layers']}" + (f", {windows} with a window of {known['window']:,}" if windows else ""),
        "heads": f"{known['q_heads']} query, {known['kv_heads']} KV, of {known['head_dim']}",
        "width, vocabulary": f"{known['hidden']:,}, {known['vocabulary']:,}",
        "positions": f"{known['positions']:,}",
        "rope": _flat(known["rope"]),
        "end tokens": ", ".join(f"{end['token']} ({end['id']})" for end in known["end_tokens"]) or "none",
        "chat template": "yes" if known["chat_template"] else "no",
        "a cache unit": f"{known['unit_bytes']:,} bytes",
        "cache per 1,000 tokens": size(known["bytes_per_1000_tokens"])
        + (f", and at most {size(known['window_bytes'])} in windows" if windows else ""),
    }
    return facts(about["model"], shown)


def _flat(value: Any) -> str:
    """`a 1, b 2` of nested settings."""
    if not isinstance(value, dict):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return ", ".join(f"{key} {_flat(item)}" for key, item in value.items() if item is not None)
