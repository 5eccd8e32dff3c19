"""Attention of many consecutive rows that skip units: what a `prefill` policy chooses for every block of rows and head.

cells.py       what is read
reference.py   the definition, over masks
blocks.py      plain torch, a block of rows at a time over the units that some head of it reads: any device
cpu.py         Numba: what a head of a block reads is gathered into panels, and nothing else is computed
"""

from torch import Tensor

from winnow.kernels.attend import kernel_for
from winnow.kernels.sparse.blocks import attend_blocks
from winnow.kernels.sparse.cells import Cells
from winnow.kernels.sparse.reference import attend_masked

__all__ = ["Cells", "attend_cells", "attend_masked"]

MANY = 64  # vectors: what chooses among kernels is the dtype, the width of heads and the device


def attend_cells(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cells: Cells,
    *,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Grouped-query attention of rows whose units are the last ones, over the cells of each row's block up to its own.

    q: [rows, q_heads, head_dim]; k, v: [kv_heads, units, head_dim], the two inner dimensions contiguous. scale,
    softcap, sinks: as of `attend()`. Returns [rows, q_heads, head_dim] in q's dtype; 0 for a row that reads nothing.
    Raises ValueError where shapes do not fit.
    """
    rows, q_heads, head_dim = q.shape
    units, blocks = k.shape[1], -(-rows // cells.rows)
    wanted = (q_heads, blocks, -(-(units + cells.front) // cells.width))
    if cells.seen.shape != wanted or units < rows or k.shape != v.shape or k.shape[2] != head_dim or q_heads % len(k):
        got = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}, cells {tuple(cells.seen.shape)}"
        raise ValueError(f"shapes do not fit: {got}, not {wanted}")
    if any(each.stride()[1:] != (head_dim, 1) for each in (k, v)):
        raise ValueError(f"k, v: the units of a head must lie side by side, strides are {k.stride()} and {v.stride()}")
    if kernel_for(q.device.type, q.dtype, MANY, head_dim, plain=True) == "prefill":
        from winnow.kernels.sparse.cpu import attend_cells_cpu

        return attend_cells_cpu(q, k, v, cells, scale=scale, softcap=softcap, sinks=sinks)
    return attend_blocks(q, k, v, cells, scale=scale, softcap=softcap, sinks=sinks)
