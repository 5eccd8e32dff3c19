"""Keys and values as codes of a few bits, with a scale and a minimum for each group of them.

reference.py     the definition
lanes.py         what kernels that read codes need of vectors; attention over them is `attend/cpu_codes.py`
"""

from winnow.kernels.quantize.form import BLOCK, SIDES, Axis, Form, Side, scales_of
from winnow.kernels.quantize.reference import dequantize, hadamard, quantize

__all__ = ["BLOCK", "SIDES", "Axis", "Form", "Side", "dequantize", "hadamard", "quantize", "scales_of"]
