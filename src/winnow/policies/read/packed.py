"""A copy of chosen units, side by side, for one step to read at the speed of memory."""

from torch import Tensor

from winnow.cache.view import View
from winnow.policies.read.selection import Buffers


def packed(view: View, index: Tensor, buffers: Buffers) -> View:
    """The units of a view at `index`, [kv_heads, units], copied into `buffers` of that size.

    The keys of the view are such as rows attend to: see `Row.keys`.
    """
    buffers.fill(view, index)
    past = index.shape[1] if view.window is None else None
    return View(buffers.keys, buffers.values, buffers.positions, buffers.positions, past, view.window, view.query_limit)
