"""The fast versions of what `reference.py` defines, for float32 on the CPU; candidates lie side by side."""

from winnow.kernels.select.cpu_fuse import fuse, mixing_weight, structural_prior
from winnow.kernels.select.cpu_mass import mass_back
from winnow.kernels.select.cpu_mean import power_mean
from winnow.kernels.select.cpu_near import exclude, highest_near, suppress
from winnow.kernels.select.cpu_top import top

__all__ = [
    "exclude", "fuse", "highest_near", "mass_back", "mixing_weight", "power_mean", "structural_prior", "suppress",
    "top",
]  # fmt: skip
