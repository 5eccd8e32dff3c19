"""What workers of benchmarks can be asked besides an answer; see `wire` among Winnow's workers.

{"do": "steps", "length", "units", "warmup", "repeats"}   decode steps after `length` cached tokens
{"do": "follow", "ids", "prompt"}        seconds of a prefill and of the steps after it, over a given text
{"do": "logits", "ids", "out", "prompt"} logits along a given text, to a file -> {}, or what is held then
"""

import time
from collections.abc import Iterator
from typing import Any, Protocol

import beside  # noqa: F401
import numpy as np
import wire


class Engine(wire.Engine, Protocol):
    """logits: of a text from its beginning, [tokens, vocab] float32 in pieces, each after its token.
    fill: a cache of `length` units, the same in every layer, with room for `steps` more."""

    def logits(self, ids: list[int]) -> Iterator[np.ndarray]: ...
    def fill(self, length: int, units: np.ndarray, steps: int) -> None: ...


def serve(engine: Engine) -> None:
    """Answer requests on standard input until it ends."""
    wire.serve(engine, steps=steps, follow=follow, logits=logits)


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
    return {"seconds": seconds[warmup:], "logits": logits.tolist(), **wire.told(engine)}


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
    return {"prefill_s": prefill_s, "seconds": seconds, **wire.told(engine)}


def logits(engine: Engine, ids: list[int], out: str, prompt: int | None) -> dict[str, Any]:
    """Write float32 logits to `out`, a row after each token: of all `ids`, in a whole forward; or [len(ids) - prompt +
    1, vocab], from the last of the first `prompt` on, after which the others are fed one by one."""
    rows = engine.logits(ids) if prompt is None else _fed(engine, ids, prompt)
    place, found, count = 0, None, len(ids) if prompt is None else len(ids) - prompt + 1
    for piece in map(np.atleast_2d, rows):
        if found is None:
            found = np.lib.format.open_memmap(out, "w+", np.float32, (count, piece.shape[1]))
        found[place : place + len(piece)] = piece
        place += len(piece)
    return {} if prompt is None else wire.told(engine)


def _fed(engine: Engine, ids: list[int], prompt: int) -> Iterator[np.ndarray]:
    yield engine.start(ids[:prompt], len(ids) - prompt + 1)
    yield from map(engine.step, ids[prompt:])
