"""What a slab has to offer whose units are held in another form than they came in."""

from typing import Protocol, Self

from torch import Tensor

from winnow.cache.run import Run, Slots, Units


class Rope(Protocol):
    """How the keys of one layer of one sequence are rotated."""

    def turn(self, keys: Tensor, places: Tensor, *, back: bool = False) -> Tensor:
        """Keys [kv_heads, units, head_dim], float32, rotated at rope positions [1 or kv_heads, units], or back."""


class SettledSlab(Protocol):
    """Units of one layer, the same number of every KV head, in the form in which they stay.

    group: units that come, and go, together. unit_bytes: of one token's units over all KV heads. remade: whether units
    that come have all of them made anew, in another slab, and this one never changes: forks go on from the same one.
    addressed: whether kernels are told where its units lie; else whoever reads them makes tensors.
    """

    @property
    def kv_heads(self) -> int: ...

    @property
    def units(self) -> int:
        """Per KV head, a multiple of `group`."""

    @property
    def group(self) -> int: ...

    @property
    def remade(self) -> bool: ...

    @property
    def addressed(self) -> bool: ...

    @property
    def unit_bytes(self) -> int: ...

    @property
    def capacity(self) -> int:
        """Units that there is memory for."""

    @property
    def nbytes(self) -> int:
        """Bytes reserved."""

    def append(self, keys: Tensor, values: Tensor, places: Tensor) -> Self:
        """The slab with units at its end: [kv_heads, whole groups, head_dim], keys rotated at [1 or kv_heads, units].

        This one, or one in its place.
        """

    def without(self, start: int, stop: int) -> Self:
        """A slab with all but some whole groups; this one stays as it is, since somebody may be reading it."""

    def run(self, start: int, stop: int) -> Run:
        """Some of the units."""

    def read(self, number: int, start: int, stop: int) -> Tensor:
        """Keys (0) or values (1), [kv_heads, units, head_dim], of some units; a copy."""

    def pick(self, number: int, index: Tensor) -> Tensor:
        """The same of the units at `index`, [kv_heads, units]."""


class Coded(Slots[SettledSlab]):
    """Units of a slab that holds them in another form."""

    @property
    def keys(self) -> Tensor:
        return self.slab.read(0, self.start, self.stop)

    @property
    def values(self) -> Tensor:
        return self.slab.read(1, self.start, self.stop)

    def pick(self, index: Tensor) -> Units:
        return self.slab.pick(0, self.start + index), self.slab.pick(1, self.start + index)
