"""The pages of units that a query could match best: chosen by bounds on their keys, which are read instead of the keys.

reference.py  the definition, in torch: any device
cpu.py        Numba: decode steps, also within the layers' kernel

Source: Tang et al., Quest, arXiv:2406.10774, section 3.
"""

import numpy as np
from torch import Tensor

from winnow.kernels.attend import kernel_for
from winnow.kernels.layers import tables as t
from winnow.kernels.pages.reference import best_pages_reference, highest

__all__ = ["best_pages", "best_pages_reference", "facts_of_pages", "highest"]


def best_pages(query: Tensor, least: Tensor, greatest: Tensor, page: int, count: int) -> Tensor:
    """Index [kv_heads, count * page] int64, ascending, of the units of the `count` pages with the highest bounds.

    Args:
        query: [q_heads, head_dim].
        least, greatest: [kv_heads, pages, head_dim], the least and the greatest key of each page per channel, in the
            dtype of the query; the pages of a head side by side.
        page: units of a page.
    Raises:
        ValueError: dtypes or shapes are not as above, or there are not `count` pages.
    """
    kv_heads, pages, head_dim = least.shape
    if least.shape != greatest.shape or query.shape[1] != head_dim or len(query) % kv_heads:
        got = f"query {tuple(query.shape)}, least {tuple(least.shape)}, greatest {tuple(greatest.shape)}"
        raise ValueError(f"best_pages: shapes do not fit: {got}")
    if not query.dtype == least.dtype == greatest.dtype:
        raise ValueError(f"best_pages: one dtype, not {query.dtype}, {least.dtype}, {greatest.dtype}")
    if not 1 <= count <= pages or page < 1:
        raise ValueError(f"best_pages: count={count} of {pages} pages of page={page} units")
    if least.stride() != greatest.stride() or least.stride()[1:] != (head_dim, 1):
        raise ValueError(f"best_pages: pages lie side by side, not with strides {least.stride()}, {greatest.stride()}")
    if kernel_for(query.device.type, query.dtype, len(query) // kv_heads, head_dim, plain=False) == "decode":
        from winnow.kernels.pages.cpu import best_pages_cpu

        return best_pages_cpu(query, least, greatest, page, count)
    return best_pages_reference(query, least, greatest, page, count)


def facts_of_pages(bounds: Tensor, page: int) -> np.ndarray:
    """What the layers' kernel is told of them, [kv_heads, CHOICE], but for how many it is to choose. bounds: [2,
    kv_heads, pages, head_dim], least and greatest."""
    told = np.zeros((bounds.shape[1], t.CHOICE), dtype=np.int64)
    heads = bounds.data_ptr() + bounds.stride(1) * bounds.itemsize * np.arange(bounds.shape[1])
    told[:, t.LEAST], told[:, t.GREATEST] = heads, heads + bounds.stride(0) * bounds.itemsize
    told[:, t.ASKED], told[:, t.PAGE] = bounds.shape[2], page
    return told
