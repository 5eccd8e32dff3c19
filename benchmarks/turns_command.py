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
from benchmarks.turns import Chats, TurnsRow, TurnTaken, measure_turns, summarise_turns
from winnow.cli.deliver import deliver
from winnow.cli.inputs import parse_plans
from winnow.cli.terminal import Meter, interruptible
from winnow.errors import InputError

# One of every policy that lets be gone on from and needs nothing trained (docs/contract.md), and two that compose some.
PLANS = (
    "full",
    "streaming(recent=1024)",
    "swiftkv(cutoff=0.75)",
    "sink_recent(recent=1024)",
    "quest(budget=512)",
    "sketch(budget=512)",
    "tidal(budget=512)",
    "slowfast(budget=512, recent=128)",
    "slowfast(budget=512, recent=128, bootstrap=16)",
    "random_heads(budget=1024, chunk=128)",
    "snapkv(budget=1024, chunk=128)",
    "scissorhands(budget=1024, chunk=128)",
    "sirllm(budget=1024, chunk=128)",
    "h2o(budget=1024, chunk=128)",
    "lazyllm",
    "static_prune",
    "speed(cutoff=0.75)",
    "pop(cutoff=0.75)",
    "quantized",
    "streaming(recent=1024) + slowfast(budget=512, recent=128) + quantized",
    "lazyllm + slowfast(budget=512, recent=128)",
)
MIB = 2**20
SETTINGS = ("length", "turns", "new", "repeats", "again", "max_cache_mib", "deterministic")
ROOM = 64  # tokens of a question and of what the chat template puts around it, at most


def turns(options: Turns) -> int:
    """Time the turns of chats; returns the exit code."""
    plans = parse_plans(options.plan, PLANS)
    source = Source(options, deterministic=options.deterministic)
    llm = load_checked(source, plans, options.length + options.turns * (options.new + ROOM))
    if llm.tokenizer is None or not llm.tokenizer.chat_template:
        raise InputError(f"{options.model_name} has no chat template, and a chat needs one; use another model")
    document = str(llm.tokenizer.decode(document_ids(llm, options.text, options.length), skip_special_tokens=True))
    taken: list[TurnTaken] = []
    total = len(plans) * options.repeats * options.turns
    limit = None if options.max_cache_mib is None else int(options.max_cache_mib * MIB)
    chats = Chats(document, options.turns, options.new, options.repeats, options.again, limit)
    with Meter("turns", total) as meter, interruptible():
        for each in measure_turns(llm, plans, chats, meter.advance):
            taken.append(each)
            meter.note(f"{each.plan}: turn {each.turn + 1} of {options.turns}, chat {each.chat + 1}")
    rows, name = summarise_turns(taken), options.model_name
    figures = {
        **{name: getattr(options, name) for name in SETTINGS},
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
    "rows\nof first, x": lambda row: f"{row.rows:.3f}",
    "new\ntokens": lambda row: f"{row.new:,.0f}",
    "held\nMiB": lambda row: f"{row.held / MIB:.1f}",
    "as without\nreuse": lambda row: f"{row.same} of {row.compared}" if row.compared else "-",
}
CAPTION = (
    "TTFT of the first turn, and of later ones, medians; of first: each over that of its chat's first turn, the median "
    "and the largest; rows: computed in later turns, over those of the first, the median; new: tokens of a later "
    "prompt that were computed, the median; held: the most after any step, retained and reserved; as without reuse: "
    "answers equal to those of an engine that retains nothing, where it was asked"
)


def _table(rows: Sequence[TurnsRow], title: str) -> Table:
    return plan_table(rows, COLUMNS, title, CAPTION)
