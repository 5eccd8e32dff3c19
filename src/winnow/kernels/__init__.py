"""Operations, each beside its reference; what Numba has compiled of them is as old as all of their sources."""

from pathlib import Path

from winnow.kernels.compiled import forget_older

forget_older(Path(__file__).parent)
