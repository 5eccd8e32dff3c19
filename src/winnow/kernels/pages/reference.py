"""The pages that a query could match best: the definition."""

import torch
from torch import Tensor

from winnow.kernels.dots.reference import dots_reference
from winnow.kernels.select.reference import top


def best_pages_reference(query: Tensor, least: Tensor, greatest: Tensor, page: int, count: int) -> Tensor:
    """The arguments and result of `best_pages()`."""
    best = top(highest(query, least, greatest), count)  # [kv_heads, count]
    return (page * best[..., None] + torch.arange(page, device=best.device)).flatten(1)


def highest(query: Tensor, least: Tensor, greatest: Tensor) -> Tensor:
    """How well the best query head of each KV head could match any key of a page, unscaled: [kv_heads, pages] float32.

    No key of a page matches a query q better than the sum over channels c of max(q_c least_c, q_c greatest_c).
    """
    bounds = dots_reference(query.clamp(min=0), greatest) + dots_reference(query.clamp(max=0), least)
    return bounds.unflatten(0, (len(least), -1)).amax(1)
