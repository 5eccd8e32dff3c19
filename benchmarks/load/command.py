"""`python -m benchmarks load`: streams, arriving and memory."""

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

import torch
from rich.console import RenderableType

from benchmarks.commands.load import Arriving, Memory, Served, Streams
from benchmarks.load.arriving import Arrived, measure_arriving, summarise_arriving
from benchmarks.load.client import Heard
from benchmarks.load.memory import Mix, Round, measure_memory
from benchmarks.load.prompts import Prompts, learn
from benchmarks.load.server import Server, started
from benchmarks.load.streams import ask_all, ask_alone, is_same, one_at_a_time, span, summarise_streams
from benchmarks.load.view import arriving_table, memory_table, streams_table
from benchmarks.machine import machine
from benchmarks.record import Record
from winnow.cli.deliver import deliver, travelling
from winnow.cli.inputs import parse_plans
from winnow.cli.options import default_model
from winnow.cli.serve import NEEDED
from winnow.cli.terminal import Meter, interruptible
from winnow.errors import InputError, MissingExtraError

MIXED = ("full", "streaming(recent=512)", "snapkv(budget=512)", "slowfast(budget=512, recent=128)", "quest(budget=512)",
         "lazyllm", "quantized")  # fmt: skip


def streams(options: Streams) -> int:
    """Ask many at once, and again one by one; returns the exit code."""
    if not options.streams + options.long:
        raise InputError("--streams 0 and --long 0 ask nothing; ask for one of either at least")
    _check_range("--short", options.short)
    _check_range("--length", options.length)
    heard: list[Heard] = []
    alone: list[Heard] = []
    looks: list[int | None] = []
    count = options.streams + options.long
    again = count if options.alone is None else min(count, options.alone)
    with Meter("answers", count + again) as meter, interruptible(), _asked(options, MIXED) as (server, prompts):
        wanted = [prompts.wanted("short", options.short, options.new) for _ in range(options.streams)]
        wanted += [prompts.wanted("long", options.length, options.new) for _ in range(options.long)]
        ask_alone(server.url, prompts.each_plan(options.new), lambda done: None)
        looks.append(server.resident())
        heard += ask_all(server.url, wanted, options.rate, options.seed, meter.advance, options.patience_s)
        looks.append(server.resident())
        asked_again = map(prompts.apart, prompts.draw.sample(wanted, again))
        alone += ask_alone(server.url, asked_again, meter.advance)
    rows = summarise_streams(heard, alone) if heard else []
    together, each = (span(heard) if heard else None), (one_at_a_time(alone) if alone else None)
    figures = {
        **_given(options, "streams", "short", "long", "length", "new", "rate", "seed", "patience_s"),
        "summary": [asdict(row) for row in rows],
        "together": None if together is None else {**asdict(together), "tokens_per_s": together.tokens_per_s},
        "one_at_a_time": None if each is None else {**asdict(each), "tokens_per_s": each.tokens_per_s},
        "resident": looks,
        "problems": dict(Counter(found.problem for found in heard if found.problem is not None)),
        "records": _records(heard, alone),
    }
    shown = streams_table(rows, together, each, looks, figures["problems"]) if rows else "nothing was answered"
    return _deliver("streams", options, figures, shown, complete=len(heard) == count and len(alone) == again)


def arriving(options: Arriving) -> int:
    """Send a long prompt among running streams; returns the exit code."""
    arrived: list[Arrived] = []
    with Meter("arrivals", options.repeats) as meter, interruptible(), _asked(options, ("full",)) as (server, prompts):
        told = (options.length, options.streams, options.before, options.new, options.repeats)
        for each in measure_arriving(server.url, prompts, *told):
            arrived.append(each)
            meter.advance(1)
    rows = summarise_arriving(arrived) if arrived else []
    figures = {
        **_given(options, "length", "streams", "before", "new", "repeats", "seed"),
        "summary": [asdict(row) for row in rows],
        "records": [asdict(each) for each in arrived],
    }
    shown = arriving_table(rows, options.streams) if rows else "nothing arrived"
    return _deliver("arriving", options, figures, shown, complete=len(arrived) == options.repeats)


def memory(options: Memory) -> int:
    """Ask much, and look at the server's memory; returns the exit code."""
    _check_range("--length", options.length)
    if options.url is not None and options.pid is None:
        raise InputError("the memory of a server that runs already is that of its process: say its --pid, too")
    rounds: list[Round] = []
    whole, rest = divmod(options.requests, options.every)
    counts = [options.warmup, *[options.every] * whole, *([rest] if rest else [])]
    mix = Mix(options.length, options.new, options.aborts, options.together)
    with Meter("requests", sum(counts)) as meter, interruptible(), _asked(options, MIXED) as (server, prompts):
        if server.resident() is None:
            raise InputError("the server's memory cannot be seen; that needs Linux, and a --pid of this machine")
        for each in measure_memory(server, prompts, mix, counts, meter.advance):
            rounds.append(each)
    figures = {
        **_given(options, "requests", "aborts", "warmup", "every", "together", "length", "new", "seed"),
        "plans": list(prompts.plans),
        "ends": dict(sum((Counter(each.ends) for each in rounds), Counter())),
        "looks": [asdict(each.look) for each in rounds],
        "ratio": None if len(rounds) < 2 else (rounds[-1].look.resident or 0) / (rounds[0].look.resident or 1),
    }
    shown = memory_table(rounds, figures["ends"]) if rounds else "nothing was asked"
    return _deliver("memory", options, figures, shown, complete=len(rounds) == len(counts))


@contextmanager
def _asked(options: Served, plans: Sequence[str]) -> Iterator[tuple[Server, Prompts]]:
    """The server and what is asked of it; plans: where none are given, and the server is Winnow's."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise MissingExtraError(f"this needs {', '.join(missing)}; install winnow with its extra 'serve'")
    fields, told = _fields(options), shlex.split(options.serve)
    if options.url is None:
        if options.pid is not None:
            raise InputError("--pid is of a server that runs already; say its --url, too")
        sent = [str(each) for each in parse_plans(options.plan, plans)]
        with started([options.model or default_model(), *told]) as server:
            yield server, learn(server.url, fields, sent, True, options.seed)
        return
    if told and options.serve != type(options).serve:
        raise InputError("--serve is for a server that is started; with --url leave it out")
    sent = [str(each) for each in parse_plans(options.plan)] if options.plan else []
    yield Server(options.url.rstrip("/"), options.pid), learn(options.url, fields, sent, False, options.seed)


def _fields(options: Served) -> dict[str, Any]:
    """What every request has. Raises InputError for what is no JSON object."""
    if options.fields is None:
        found: Any = {"ignore_eos": True} if options.url is None else {}
    else:
        try:
            found = json.loads(options.fields)
        except ValueError as error:
            raise InputError(f"--fields is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise InputError('--fields has to be a JSON object, such as {"ignore_eos": true}')
    named = {} if options.url is None or options.model is None else {"model": options.model}
    return {**named, **found}


def _check_range(name: str, given: tuple[int, int]) -> None:
    if given[0] > given[1]:
        raise InputError(f"{name} {given[0]} {given[1]}: the least comes first; swap them")


def _given(options: Served, *names: str) -> dict[str, Any]:
    return {name: getattr(options, name) for name in (*names, "serve", "url", "fields")}


def _records(heard: Sequence[Heard], alone: Sequence[Heard]) -> list[dict[str, Any]]:
    """Each request of the load, without its texts."""
    expected = {each.wanted.number: each.text for each in alone if each.complete}
    return [
        {
            "number": each.wanted.number,
            "kind": each.wanted.kind,
            "plan": each.wanted.body.get("plan"),
            "prompt": each.prompt,
            "new": each.new,
            "refused": each.refused,
            "ttft_s": each.ttft_s,
            "seconds": each.ended_s - each.asked_s,
            "problem": each.problem,
            "same": is_same(each, expected),
        }
        for each in heard
    ]


def _deliver(name: str, options: Served, figures: dict[str, Any], shown: RenderableType, *, complete: bool) -> int:
    about = {"model": travelling(options.model or default_model()), "machine": machine(torch.device("cpu"))}
    return deliver(Record(f"load {name}", figures, shown, complete=complete, about=about), options)
