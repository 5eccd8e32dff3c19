"""Pruning schedules: which share of the prompt enters each layer."""

import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

from winnow.policies.base import ModelShape

# The paper gives no numbers. These shares are chosen on validation texts, of a pre-trained model and of the toy: with
# 0.4, 0.2 and 0.1, which is 0.425 of the rows and near the speed-up of 2.34 that it reports, texts go on less as under
# full attention (docs/results/quality.md).
CUMULATIVE = (0.45, 0.4, 0.35)

RankLayers = Literal["last", "all"]


def ranking(layer: int, which: RankLayers) -> tuple[int, ...]:
    """The layers whose attention ranks tokens at the entrance of `layer`: the one below, or all below."""
    return tuple(range(layer - 1 if which == "last" else 0, layer))


def last_layer(shape: ModelShape) -> int:
    """The last layer at which parking a token takes no more memory than the units it saves.

    A hidden state is `hidden` numbers, and the layers from p on would hold (layers - p) * 2 * kv_heads * head_dim.
    """
    return shape.layers - math.ceil(shape.hidden / (2 * shape.kv_heads * shape.head_dim))


@functools.cache  # asked for at every choice of every step
def preset_layers(shape: ModelShape, last: int, shift: int = 0) -> tuple[int, ...]:
    """The first at `first_place` of a quarter, the others thirds of what is left further up: a quarter, half and three
    quarters into a model that finds early. All `shift` layers earlier; last: see `pruning_layer`."""
    first = first_place(shape, Fraction(1, 4))
    wanted = [first + (shape.layers - first) * Fraction(third, 3) - shift for third in range(3)] if last >= 1 else []
    return tuple(sorted({pruning_layer(shape, place, last) for place in wanted}))


def first_place(shape: ModelShape, share: Fraction) -> Fraction:
    """Where tokens stop first: at this share of the layers, or above the first that finds where that is higher. A layer
    below ranks tokens by anything but what the end of the prompt asks for."""
    return max(share * shape.layers, Fraction(0 if shape.finds is None else shape.finds + 1))


def first_layer(shape: ModelShape, share: Fraction) -> int:
    """The layer next to `first_place` at whose entrance tokens may stop."""
    return pruning_layer(shape, first_place(shape, share), shape.layers - 1)


def pruning_layer(shape: ModelShape, place: Fraction, last: int) -> int:
    """The layer next to `place`, the later of two as near, from 1 to `last`, above one that sees the whole prompt, if
    there is any: a sliding window ranks only what is in it."""
    allowed = range(1, last + 1)
    sees_all = [p for p in allowed if shape.windows[p - 1] is None] or allowed
    return min(sees_all, key=lambda p: (abs(p - place), -p))


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
