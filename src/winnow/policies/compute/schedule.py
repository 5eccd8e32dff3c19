"""Pruning schedules: which share of the prompt enters each layer, and how to find one for a wanted cost."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from winnow.errors import InputError
from winnow.policies.base import ModelShape

# The paper gives no numbers. A quarter of the layers each at all, 0.4, 0.2 and 0.1 of the prompt is 0.425 of the rows,
# which is near the speed-up of 2.34 it reports for multi-document questions.
STAGES = (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4))
CUMULATIVE = (0.4, 0.2, 0.1)


def last_layer(shape: ModelShape) -> int:
    """The last layer at which parking a token takes no more memory than the units it saves.

    A hidden state is `hidden` numbers, and the layers from p on would hold (layers - p) * 2 * kv_heads * head_dim.
    """
    return shape.layers - math.ceil(shape.hidden / (2 * shape.kv_heads * shape.head_dim))


@functools.cache  # asked for at every choice of every step
def preset_layers(shape: ModelShape, last: int, shift: int = 0) -> tuple[int, ...]:
    """A quarter, half and three quarters into the model, `shift` layers earlier, at most `last`.

    Each moves to the nearest layer above one that sees the whole prompt, if there is any: a sliding window ranks only
    what is in it.
    """
    allowed = range(1, last + 1)
    sees_all = [p for p in allowed if shape.windows[p - 1] is None] or allowed
    wanted = [stage * shape.layers - shift for stage in STAGES] if sees_all else []
    return tuple(sorted({min(sees_all, key=lambda p: abs(p - place)) for place in wanted}))


def survivors(tokens: int, keep: float, least: int = 1) -> int:
    """How many of `tokens` candidates a keep ratio leaves: rounded up, at least `least` if there are so many."""
    return min(tokens, max(least, math.ceil(keep * tokens - 1e-9)))


def rows_per_layer(prompt: int, layers: int, at: Sequence[int], keep: Sequence[float], least: int = 1) -> list[int]:
    """How many of `prompt` tokens enter each layer in prefill. The last token is always among them, uncounted by keep.

    at: pruning layers; keep: share of the candidates left at each.
    """
    rows, candidates = [], prompt - 1
    for layer in range(layers):
        if layer in at:
            candidates = survivors(candidates, keep[list(at).index(layer)], least)
        rows.append(candidates + 1)
    return rows


def flops(rows: Sequence[int], shape: ModelShape) -> float:
    """The operations of all layers with `rows[l]` active tokens each, in FastV's form (arXiv:2403.06764, section 4.2).

    Per layer 4 n D^2 + 2 n^2 D + 3 n D M, with hidden width D and a gated MLP of width M; good for ratios.
    """
    width, mlp = shape.hidden, shape.mlp
    return float(sum(4 * n * width**2 + 2 * n**2 * width + 3 * n * width * mlp for n in rows))


@dataclass(frozen=True)
class Proposal:
    """A schedule and what it costs in prefill, as shares of full attention; counted, not timed.

    rows: of the layer-token rows; flops: of the operations. The time to the first token falls between the two.
    """

    layers: tuple[int, ...]
    keep: tuple[float, ...]
    rows: float
    flops: float

    @property
    def plan(self) -> str:
        """The plan's text."""
        return f"lazyllm(layers={list(self.layers)}, keep={list(self.keep)})"


def propose(
    shape: ModelShape,
    prompt: int,
    *,
    rows: float | None = None,
    flops: float | None = None,
    speedup: float | None = None,
) -> Proposal:
    """The mildest schedule that computes at most a share `rows` or `flops`, or 1/`speedup` of the rows.

    Stages are the preset's; the survivors shrink by the same factor at each, so that earlier layers keep more, and
    never below 2 % of the prompt. Raises InputError where that cannot be reached on this model.
    """
    if sum(wanted is not None for wanted in (rows, flops, speedup)) != 1:
        raise InputError("give one of rows, flops and speedup")
    if speedup is not None and speedup < 1:
        raise InputError(f"speedup={speedup} must be at least 1")
    target = 1 / speedup if speedup else rows if rows is not None else flops
    if target is None or not 0 < target <= 1:
        raise InputError(f"a share of {target} must be above 0 and at most 1")
    cheapest = None
    for shift in (0, 1, 2, 3):  # the stages as they are, then each time a layer earlier
        layers = preset_layers(shape, last_layer(shape), shift)
        for percent in range(100, 0, -1):
            found = _cost(shape, prompt, layers, percent / 100)
            if found is None:
                break
            cheapest = found
            if (found.flops if flops is not None else found.rows) <= target + 1e-9:
                return found
    if cheapest is None:
        raise InputError(f"a model of {shape.layers} layers has no layer at which parking tokens saves memory")
    what = cheapest.flops if flops is not None else cheapest.rows
    raise InputError(f"no schedule computes {target:.3f} on this model; the least is {what:.3f}, {cheapest.plan}")


def _cost(shape: ModelShape, prompt: int, layers: tuple[int, ...], keep: float) -> Proposal | None:
    """The same `keep` at each of `layers`; None where less than 2 % would be left."""
    if not layers or keep ** len(layers) < 0.02:
        return None
    keeps = (keep,) * len(layers)
    counts = rows_per_layer(prompt, shape.layers, layers, keeps)
    whole = [prompt] * shape.layers
    share = flops(counts, shape) / flops(whole, shape)
    return Proposal(layers, keeps, sum(counts) / sum(whole), share)
