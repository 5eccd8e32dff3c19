"""The highest scores: of each KV head by itself, or of a layer, where some heads have more of them than others."""

import torch
from torch import Tensor

SAME = 1e-5  # relative difference of scores that says nothing: rounding depends on which rows are computed together


def best(scores: Tensor, count: int, *, cancels: bool = False) -> Tensor:
    """Index [heads, count], ascending, of the highest of finite scores [heads, units].

    Where several have the last place's score, but for rounding, as units of a token repeated have in the first layer,
    the newest of them are taken. cancels: whether scores are sums of larger terms of either sign: those of the last
    place are then as uncertain as the largest of a head, those of units that are kept or given up anyway apart.
    """
    return _highest(scores, count, cancels).nonzero()[:, 1].view(len(scores), count)


def best_of_layer(scores: Tensor, positions: Tensor, count: int, sure: int, *, cancels: bool = False) -> list[Tensor]:
    """Of each head the index, ascending, of what it has among the `count` highest scores of all, [heads, units].

    Every head has at least its `sure` highest, or all that it has. -inf: a head has no such unit. Where several have
    the last place's score, see `best`, the newest are taken by positions, [heads, units], and of units of one token
    those of the later heads.
    """
    live = scores > -torch.inf
    certain = _highest(scores, min(sure, scores.shape[1]), cancels) & live
    everything = scores.masked_fill(certain, torch.finfo(scores.dtype).max).flatten()
    order = positions.flatten().argsort(stable=True)  # the older of two stands before the newer
    taken = torch.zeros_like(live).flatten()
    taken[order] = _highest(everything[order][None], count, cancels)[0]
    return [head.nonzero().flatten() for head in taken.view_as(live) & live]


def best_of_all(scores: Tensor, count: int) -> list[Tensor]:
    """Of each head the index, ascending, of what it has among the `count` highest of all finite scores [heads, units].

    All heads have units of the same tokens. Where several have the last place's score, see `best`, the newest are
    taken, and of units of one token those of the later heads.
    """
    by_token = scores.T
    taken = _highest(by_token.reshape(1, -1), count, cancels=False).view(by_token.shape).T
    return [head.nonzero().flatten() for head in taken]


def _highest(scores: Tensor, count: int, cancels: bool) -> Tensor:
    """[heads, units] bool: where the `count` highest stand, the newer ones to the right."""
    if not count:
        return torch.zeros_like(scores, dtype=torch.bool)
    edge = scores.topk(count).values[:, -1:]
    size = edge.abs()
    if cancels:
        magnitudes = scores.abs()
        size = magnitudes.masked_fill(magnitudes >= torch.finfo(scores.dtype).max, 0.0).amax(-1, keepdim=True)
    slack = SAME * size
    above = scores > edge + slack
    level = (scores >= edge - slack) & ~above
    room = count - above.sum(-1, keepdim=True)
    newer = level.flip(-1).cumsum(-1).flip(-1)  # how many of the level stand here or later
    return above | (level & (newer <= room))
