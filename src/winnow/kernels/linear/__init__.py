"""Linear layers at few rows, bounded by reading the weights once.

reference.py   the definition
cpu.py         Numba, up to `MAX_ROWS` rows
module.py      nn.Linear with the same parameters that uses it, and how a model is switched to it and back
"""

from winnow.kernels.linear.module import FastLinear, available, fast_linears, linear
from winnow.kernels.linear.reference import linear_reference

__all__ = ["FastLinear", "available", "fast_linears", "linear", "linear_reference"]
