"""Linear layers at few rows, bounded by reading the weights once.

reference.py   the definition
cpu.py         Numba, up to `MAX_ROWS` rows
module.py      nn.Linear with the same parameters that uses it, and how a tree of modules is made to use it
"""

from winnow.kernels.linear.module import MAX_ROWS, FastLinear, available, linear, use_fast_linears
from winnow.kernels.linear.reference import linear_reference

__all__ = ["MAX_ROWS", "FastLinear", "available", "linear", "linear_reference", "use_fast_linears"]
