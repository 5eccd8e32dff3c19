"""Hugging Face's store: what transformers' QuantizedCache makes of units, to be compared with."""

from dataclasses import dataclass
from math import gcd
from typing import ClassVar, Literal

import torch

from winnow.cache.requantized import RequantizedSlab
from winnow.cache.settled import Rope
from winnow.parameters import Count
from winnow.policies.base import ModelShape, StorePolicy


@dataclass(frozen=True)
class HFQuantized(StorePolicy):
    """Hold units as transformers' QuantizedCache does with quanto: all of them quantised anew at every flush.

    bits: of a code. group_size: consecutive channels of a unit that share a scale and a shift, of keys and of values
    alike. residual_length: tokens from one flush to the next. chunk: prompt tokens that come at once; None: all.
    zero_point: whether minima are whole numbers of steps, of a byte each, as in older versions of quanto.

    The rows of the first chunk attend to each other's units as they came; these are quantised then. Whoever comes later
    attends to what the codes say and to the units since the last flush; once these are `residual_length`, the flush
    makes codes of all that has been attended to, of what was made of codes too. So chunks of as many tokens have a
    prompt quantised with every one of them; groups lie within a unit, and their least and largest values are codes
    themselves, so what is made anew is the same but for rounding to the model's type. Scales and shifts are of that
    type: a key or a value takes bits / 8 + 2 element_bytes / group_size bytes per element. Nothing reads codes where
    they lie: every step makes tensors of all. It is slow, as theirs is, and is meant for comparisons; `quantized` is
    the store to be used.

    Source: transformers 5.23, `QuantizedLayer.update` and `QuantoQuantizedLayer`, with its defaults axis_key =
    axis_value = 0; optimum-quanto 0.2.7, `MaxOptimizer`. With zero_point: the quanto beside the code of Locret,
    arXiv:2410.01805. Theirs divides by 0 where all values of a group are equal; here they are then kept, or with
    zero_point become 0.
    """

    bits: Literal[2, 4] = 4
    group_size: Count = 64
    residual_length: Count = 128
    chunk: Count | None = None
    zero_point: bool = False

    name = "hf_quantized"
    source = "transformers 5.23, QuantizedCache"
    off: ClassVar = None
    trial: ClassVar = {"bits": 2, "group_size": 8, "residual_length": 7, "chunk": 12}

    def check(self) -> None:
        self.require(self.group_size % 8 == 0, f"group_size={self.group_size} is no multiple of 8; use 64")

    def validate(self, shape: ModelShape) -> None:
        self.require(
            shape.head_dim % self.group_size == 0,
            f"group_size={self.group_size} does not divide the {shape.head_dim} channels of a head, where groups would "
            f"go on in the next unit; use group_size={gcd(self.group_size, shape.head_dim)}",
        )

    def next_change(self, known: int, prompt: int) -> int | None:
        chunk = min(prompt, self.chunk or prompt)
        apart = self._apart(chunk)
        last = chunk + (prompt - chunk) // apart * apart  # of the flushes after whole chunks
        if prompt - last >= self.residual_length:
            last = prompt
        if known < chunk:
            return chunk
        if known < last:
            return min(known + apart - (known - chunk) % apart, last)
        return known + self.residual_length - (known - last) % self.residual_length

    def stays(self, prompt: int) -> int:
        chunk = min(prompt, self.chunk or prompt)
        return max(self._apart(chunk), self.residual_length)

    def settled(
        self, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device, rope: Rope | None
    ) -> RequantizedSlab:
        return RequantizedSlab.empty(
            self.bits, self.group_size, kv_heads, head_dim, dtype, device, zero_point=self.zero_point
        )

    def nbytes(self, units: int, shape: ModelShape) -> int:
        if self.chunk is None:  # the whole prompt is held as it came
            return units * shape.unit_bytes
        shift = 1 if self.zero_point else shape.element_bytes
        coded = 2 * shape.head_dim * self.bits // 8
        coded += 2 * shape.head_dim // self.group_size * (shape.element_bytes + shift)
        # Where a window has gone on, codes of what has left it are held until all are made anew.
        return min(units, self._apart(self.chunk)) * shape.unit_bytes + units * coded

    def _apart(self, chunk: int) -> int:
        """Prompt tokens between two flushes: as many chunks as are `residual_length` tokens."""
        return -(-self.residual_length // chunk) * chunk
