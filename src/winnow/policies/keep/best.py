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
    if count == scores.shape[1] - 1:
        return _all_but_one(scores, cancels)
    return _highest(scores, count, cancels).nonzero()[:, 1].view(len(scores), count)


def best_in_two(first: Tensor, second: Tensor, count: int, half: int, *, cancels: bool = False) -> Tensor:
    """Index [heads, count], ascending, of the `half` highest by `first` and the highest others by `second`."""
    sure = _highest(first, half, cancels)
    return best(second.masked_fill(sure, torch.finfo(second.dtype).max), count, cancels=cancels)


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
    slack = _slack(scores, edge, cancels)
    above = scores > edge + slack
    level = (scores >= edge - slack) & ~above
    room = count - above.sum(-1, keepdim=True)
    newer = level.flip(-1).cumsum(-1).flip(-1)  # how many of the level stand here or later
    return above | (level & (newer <= room))


def _all_but_one(scores: Tensor, cancels: bool) -> Tensor:
    """What `best` answers where one unit of each head leaves, as in decode steps: the lowest two say which, and nothing
    has to be ranked."""
    lowest, edge = scores.topk(2, largest=False).values.split(1, -1) if scores.shape[1] > 1 else (scores, scores)
    slack = _slack(scores, edge, cancels)
    leaves = (scores <= torch.where(lowest < edge - slack, lowest, edge + slack)).byte().argmax(-1, keepdim=True)
    index = torch.arange(scores.shape[1] - 1, device=scores.device)
    return index + (index >= leaves)


def _slack(scores: Tensor, edge: Tensor, cancels: bool) -> Tensor:
    """[heads, 1]: what two scores about the last place's may differ by through rounding alone."""
    if not cancels:
        return SAME * edge.abs()
    magnitudes = scores.abs()
    return SAME * magnitudes.masked_fill(magnitudes >= torch.finfo(scores.dtype).max, 0.0).amax(-1, keepdim=True)
