"""Knorm: keys of a small norm are attended to most, and stay in a cache of fixed size."""

from dataclasses import dataclass

from torch import Tensor

from winnow.policies.base import Services
from winnow.policies.keep.base import Score, UnitScorer
from winnow.policies.keep.budgeted import HeadByHead


@dataclass(frozen=True)
class Knorm(HeadByHead):
    """Keep the units whose keys have the smallest norms.

    A unit's score is -||k||, of its key before rotation, which changes no norm but by a factor that all keys of a layer
    have in common. It is computed once, when the unit comes, so it depends on nothing else that is there.

    budget: units per KV head that a layer keeps, in tokens.
    chunk: prompt tokens from one eviction to the next; None: a single one, as in the authors' code.
    local: last tokens of the prompt that stay beside the budget; None: 100, but no more than the budget and all but
        one of the prompt.
    positions: "compact": rope positions are places among the kept units, and a prompt may be longer than the model's
        positions; "original": places in the text, as in the authors' code.
    decode_chunk: new tokens from one eviction to the next; None: none is evicted after the prompt.
    by_layer: "uniform": every layer has the budget; "pyramid": budgets fall from the first layer to the last, with as
        many units in all (PyramidKV, arXiv:2406.02069).
    by_head: "uniform": every KV head has the layer's budget; "adaptive": the heads of a layer share theirs by their
        scores, a fifth of it being sure for each (Ada-KV, arXiv:2407.11550). What a head does not keep takes no memory.

    With chunk=None and local=0 this is kvpress's KnormPress. The authors leave the first two layers whole in some of
    their experiments; here, as in kvpress, all are compressed.

    Source: Devoto et al., A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression, arXiv:2406.11430.
    """

    name = "knorm"
    source = "arXiv:2406.11430"

    @property
    def score(self) -> Score:
        return Score("kv", heads=small_keys)


def small_keys(services: Services) -> UnitScorer:
    """What scores units by their keys alone, of any model."""
    return norms


def norms(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """-||k||, [kv_heads, rows] float32. k: [kv_heads, rows, head_dim]."""
    return -k.float().norm(dim=-1)
