"""Linear layers: at few rows bounded by reading the weights once, at many by arithmetic.

reference.py   the definition
cpu.py         Numba, up to `MAX_ROWS` rows
many.py        torch's products, in the dtype that the CPU multiplies fastest
module.py      nn.Linear with the same parameters that uses it, and how a tree of modules is made to use it
"""

from winnow.kernels.linear.many import PIECE, by_pieces, multiplied_in, product
from winnow.kernels.linear.module import MAX_ROWS, FastLinear, available, linear, use_fast_linears
from winnow.kernels.linear.reference import linear_reference

__all__ = [
    "MAX_ROWS", "PIECE", "FastLinear", "available", "by_pieces", "linear", "linear_reference", "multiplied_in",
    "product", "use_fast_linears",
]  # fmt: skip
