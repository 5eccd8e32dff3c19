"""What every worker of a comparison does: read requests, time a greedy answer, tell what it took, one JSON a line.

The files of this folder are run as scripts, each by the Python that has what it needs, so they import nothing of
Winnow except `winnow_worker`. A worker is asked, in this order:

    {"do": "check", ...options}              imports its library and refuses options it cannot follow -> versions
    {"do": "convert", "source", "target", "kind"}             instead of what follows, where the library can -> {}
    {"do": "load", "model": path, ...}       -> {}
    {"do": "answer", "ids", "max_tokens", "stop"}             any number of times

and replies {"ok": ...}, or {"error": sentence, "missing": whether a library is} where it cannot.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable
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
    same after one more token. held: bytes of the units held now, and how many those are, summed over layers and KV
    heads, or None where the engine does not tell.
    """

    def check(self, **options: Any) -> dict[str, str]: ...
    def load(self, **options: Any) -> None: ...
    def start(self, ids: list[int], max_tokens: int) -> np.ndarray: ...
    def step(self, token: int) -> np.ndarray: ...
    def held(self) -> tuple[int, int | None]: ...


def serve(engine: Engine, **asked: Callable[..., dict[str, Any]]) -> None:
    """Answer requests on standard input until it ends. asked: what it can do beside the above, of the engine."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not mix with the replies
    asked["answer"] = answer
    for line in sys.stdin:
        request = json.loads(line)
        what, reply = request.pop("do"), dict[str, Any]()
        try:
            found = asked[what](engine, **request) if what in asked else getattr(engine, what)(**request)
            reply = {"ok": found or {}}
        except Refused as error:
            reply = {"error": str(error), "missing": isinstance(error, Missing)}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


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
