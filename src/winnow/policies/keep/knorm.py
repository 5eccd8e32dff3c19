"""Knorm: keys of a small norm are attended to most, and stay in a cache of fixed size."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from winnow.parameters import Count, Natural
from winnow.policies.base import Services
from winnow.policies.keep.base import Score, UnitScorer
from winnow.policies.keep.budgeted import Budgeted, Positions


@dataclass(frozen=True)
class Knorm(Budgeted):
    """Keep the units whose keys have the smallest norms.

    A unit's score is -||k||, of its key before rotation, which changes no norm but by a factor that all keys of a layer
    have in common. It is computed once, when the unit comes, so it depends on nothing else that is there.

    budget: units per KV head that a layer keeps, in tokens.
    chunk: prompt tokens from one eviction to the next; None: a single one, as in the authors' code.
    local: last tokens of the prompt that stay beside the budget; None: 100, or all but one of a shorter prompt.
    positions: "compact": rope positions are places among the kept units, and a prompt may be longer than the model's
        positions; "original": places in the text, as in the authors' code.
    decode_chunk: new tokens from one eviction to the next; None: none is evicted after the prompt.

    With chunk=None and local=0 this is kvpress's KnormPress. The authors leave the first two layers whole in some of
    their experiments; here, as in kvpress, all are compressed.

    Source: Devoto et al., A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression, arXiv:2406.11430.
    """

    budget: Count = 1024
    chunk: Count | None = 512
    local: Natural | None = None
    positions: Positions = "original"
    decode_chunk: Count | None = None

    name = "knorm"
    source = "arXiv:2406.11430"
    off: ClassVar = {"budget": 1_000_000_000}
    trial: ClassVar = {"budget": 9, "chunk": 6, "local": 4}

    @property
    def score(self) -> Score:
        return Score("kv", heads=small_keys)


def small_keys(services: Services) -> UnitScorer:
    """What scores units by their keys alone, of any model."""
    return norms


def norms(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """-||k||, [kv_heads, rows] float32. k: [kv_heads, rows, head_dim]."""
    return -k.float().norm(dim=-1)
