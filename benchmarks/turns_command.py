"""`python -m benchmarks turns`: what the turns of a chat over a document wait for."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

import torch
from rich.table import Table

from benchmarks.commands.engine import Turns
from benchmarks.document import document_ids
from benchmarks.record import Record, about
from benchmarks.source import Source, load_checked
from benchmarks.tables import plan_table
from benchmarks.turns import TurnsRow, TurnTaken, measure_turns, summarise_turns
from winnow.cli.deliver import deliver
from winnow.cli.inputs import parse_plans
from winnow.cli.terminal import Meter, interruptible
from winnow.errors import InputError

PLANS = (
    "full",
    "streaming(recent=1024)",
    "snapkv(budget=1024, chunk=512)",
    "quantized",
    "slowfast(budget=512, recent=128)",
)
ROOM = 64  # tokens of a question and of what the chat template puts around it, at most


def turns(options: Turns) -> int:
    """Time the turns of chats; returns the exit code."""
    plans = parse_plans(options.plan, PLANS)
    llm = load_checked(Source(options), plans, options.length + options.turns * (options.new + ROOM))
    if llm.tokenizer is None or not llm.tokenizer.chat_template:
        raise InputError(f"{options.model_name} has no chat template, and a chat needs one; use another model")
    document = str(llm.tokenizer.decode(document_ids(llm, options.text, options.length), skip_special_tokens=True))
    taken: list[TurnTaken] = []
    total = len(plans) * options.repeats * options.turns
    settings = {name: getattr(options, name) for name in ("turns", "new", "repeats")}
    with Meter("turns", total) as meter, interruptible():
        for each in measure_turns(llm, plans, document, **settings, progress=meter.advance):
            taken.append(each)
            meter.note(f"{each.plan}: turn {each.turn + 1} of {options.turns}, chat {each.chat + 1}")
    rows, name = summarise_turns(taken), options.model_name
    figures = {
        "length": options.length,
        **settings,
        "summary": [asdict(row) for row in rows],
        "records": [asdict(each) for each in taken],
    }
    title = f"{name}: {options.turns} turns over {options.length:,} tokens, {torch.get_num_threads()} threads"
    shown = _table(rows, title) if rows else "no chat came to a second turn"
    return deliver(Record("turns", figures, shown, complete=len(taken) == total, about=about(llm, name)), options)


COLUMNS: dict[str, Callable[[TurnsRow], str]] = {
    "chats": lambda row: str(row.chats),
    "first\ns": lambda row: f"{row.first_s:.2f}",
    "later\ns": lambda row: f"{row.later_s:.3f}",
    "of first\nx": lambda row: f"{row.of_first:.3f}",
    "worst\nx": lambda row: f"{row.worst:.3f}",
    "new\ntokens": lambda row: f"{row.new:,.0f}",
    "retained\nMiB": lambda row: f"{row.retained / 2**20:.1f}",
}
CAPTION = (
    "TTFT of the first turn, and of later ones, medians; of first: each over that of its chat's first turn, the median "
    "and the largest; new: tokens of a later prompt that were computed, the median; retained: the most after any turn"
)


def _table(rows: Sequence[TurnsRow], title: str) -> Table:
    return plan_table(rows, COLUMNS, title, CAPTION)
