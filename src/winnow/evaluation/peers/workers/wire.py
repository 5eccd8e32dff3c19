"""What every worker of a comparison does: read requests, time a greedy answer, tell what it took, one JSON a line.

The files of this folder are run as scripts, each by the Python that has what it needs, so they import nothing of
Winnow except `winnow_worker`. A worker is asked, in this order:

    {"do": "check", ...options}              imports its library and refuses options it cannot follow -> versions
    {"do": "convert", "source", "target", "kind"}             instead of what follows, where the library can -> {}
    {"do": "load", "model": path, ...}       -> {}
    {"do": "answer", "ids", "max_tokens", "stop"}             any number of times, as the others
    {"do": "steps", "length", "units", "warmup", "repeats"}   decode steps after `length` cached tokens
    {"do": "follow", "ids", "prompt"}        seconds of a prefill and of the steps after it, over a given text
    {"do": "logits", "ids", "out", "fed"}    logits at every place of a given text, to a file -> {}

and replies {"ok": ...}, or {"error": sentence, "missing": whether a library is} where it cannot.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Refused(Exception):
    """What was asked cannot be done; the message says why and what to change."""


class Missing(Refused):
    """A library is not where this Python looks; the message says how to install it."""


class Engine(Protocol):
    """A model and one sequence's cache; one that makes formats of a GGUF file has `convert(source, target, kind)` too.

    check: versions of what runs, by name. start: prefill and return the logits after it, [vocab] float32. step: the
    same after one more token. logits: of a text from its beginning, [tokens, vocab] float32 in pieces, each after its
    token. fill: a cache of `length` random units. held: bytes of the units held now, and how many
    those are, summed over layers and KV heads, or None where the engine does not tell.
    """

    def check(self, **options: Any) -> dict[str, str]: ...
    def load(self, **options: Any) -> None: ...
    def start(self, ids: list[int], max_tokens: int) -> np.ndarray: ...
    def step(self, token: int) -> np.ndarray: ...
    def logits(self, ids: list[int]) -> Iterator[np.ndarray]: ...
    def fill(self, length: int, units: np.ndarray, steps: int) -> None: ...
    def held(self) -> tuple[int, int | None]: ...


def serve(engine: Engine) -> None:
    """Answer requests on standard input until it ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not mix with the replies
    for line in sys.stdin:
        request = json.loads(line)
        reply: dict[str, Any]
        try:
            reply = {"ok": _do(engine, request.pop("do"), request)}
        except Refused as error:
            reply = {"error": str(error), "missing": isinstance(error, Missing)}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _do(engine: Any, what: str, request: dict[str, Any]) -> dict[str, Any]:
    if what == "check":
        return engine.check(**request)
    if what == "load":
        engine.load(**request)
        return {}
    if what == "convert":
        engine.convert(**request)
        return {}
    work: dict[str, Callable[..., dict[str, Any]]]
    work = {"answer": answer, "steps": steps, "follow": follow, "logits": logits}
    return work[what](engine, **request)


def answer(engine: Engine, ids: list[int], max_tokens: int, stop: list[int]) -> dict[str, Any]:
    """Continue `ids` greedily to the first of the `stop` tokens, which is part of the answer, or to `max_tokens`."""
    forget_peak()
    began = time.perf_counter()
    tokens = [int(engine.start(ids, max_tokens).argmax())]
    ttft_s = time.perf_counter() - began
    while tokens[-1] not in stop and len(tokens) < max_tokens:
        tokens.append(int(engine.step(tokens[-1]).argmax()))
    total_s = time.perf_counter() - began
    return {"token_ids": tokens, "ttft_s": ttft_s, "total_s": total_s, **told(engine)}


def steps(engine: Engine, length: int, units: str, warmup: int, repeats: int) -> dict[str, Any]:
    """Seconds of decode steps of token 1 after `length` tokens; all layers hold the keys and values in `units`.

    units: a file of float32, [2, kv_heads, length, head_dim], keys rotated. logits: after the first step.
    """
    engine.fill(length, np.load(units, mmap_mode="r"), warmup + repeats + 1)
    logits, seconds = engine.step(1), []
    for _ in range(warmup + repeats):
        began = time.perf_counter()
        engine.step(1)
        seconds.append(time.perf_counter() - began)
    return {"seconds": seconds[warmup:], "logits": logits.tolist(), **told(engine)}


def follow(engine: Engine, ids: list[int], prompt: int) -> dict[str, Any]:
    """Prefill `ids[:prompt]` and feed the others one by one: seconds of the one and of each of the others."""
    began = time.perf_counter()
    engine.start(ids[:prompt], len(ids) - prompt)
    prefill_s = time.perf_counter() - began
    seconds = []
    for token in ids[prompt:]:
        began = time.perf_counter()
        engine.step(token)
        seconds.append(time.perf_counter() - began)
    return {"prefill_s": prefill_s, "seconds": seconds, **told(engine)}


def logits(engine: Engine, ids: list[int], out: str, fed: bool) -> dict[str, Any]:
    """Write [len(ids), vocab] float32 to `out`: of a whole forward, or with every token but the first fed by itself."""
    rows = (engine.start(ids[:1], len(ids)) if not at else engine.step(ids[at]) for at in range(len(ids)))
    place, found = 0, None
    for piece in map(np.atleast_2d, rows if fed else engine.logits(ids)):
        if found is None:
            found = np.lib.format.open_memmap(out, "w+", np.float32, (len(ids), piece.shape[1]))
        found[place : place + len(piece)] = piece
        place += len(piece)
    return {}


def told(engine: Engine) -> dict[str, Any]:
    size, kept = engine.held()
    return {"cache_bytes": size, "kept_units": kept, "peak_bytes": peak()}


def forget_peak() -> None:
    """Let the most memory held begin anew, where the system can (proc(5))."""
    if os.access(CLEAR, os.W_OK):
        CLEAR.write_text("5")


def peak() -> int | None:
    """The most resident memory in bytes, None where the system does not tell."""
    if not STATUS.exists():
        return None
    found = re.search(r"^VmHWM:\s+(\d+) kB$", STATUS.read_text(encoding="utf-8"), re.MULTILINE)
    return 1024 * int(found[1]) if found else None
