"""The fast versions of some that `reference.py` defines, for float32 on the CPU; candidates lie side by side."""

from winnow.kernels.select.cpu_mass import mass_back
from winnow.kernels.select.cpu_mean import power_mean
from winnow.kernels.select.cpu_top import top

__all__ = ["mass_back", "power_mean", "top"]
