"""Keys and values as codes of a few bits, with a scale and a minimum for each group of them.

reference.py     the definition
lanes.py         what kernels that read codes need of vectors; attention over them is `attend/cpu_codes.py`
"""

from winnow.kernels.quantize.form import Axis, Form, Side, scales_of
from winnow.kernels.quantize.reference import dequantize, quantize

__all__ = ["Axis", "Form", "Side", "dequantize", "quantize", "scales_of"]
