"""Units in files: memory that the system fills as it is read, and how much of it is a sequence's own at a time.

The files have no names. Nobody else can open, cut short or leave them behind, and the system deletes each with the last
tensor over it, or with the process. Their room is taken when they are made, so that a full disk is an error there, and
not a signal where units are written.
"""

import ctypes
import functools
import math
import mmap
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from tempfile import TemporaryFile

import torch
from torch import Tensor

from winnow.cache.layer import LayerCache
from winnow.cache.memory import Slab
from winnow.cache.run import Dense
from winnow.errors import CapacityError

MIB = 2**20


class Files:
    """The files of a sequence and of its forks, and which of their slabs may have pages in memory.

    folder: where they are made. most: bytes that are in memory at once. A slab counts whole, whatever is read of it:
    with a page the system may bring all that was written together with it.
    """

    def __init__(self, folder: str, most: int) -> None:
        self.most = most
        self._folder = folder
        self._there: weakref.WeakSet[MappedSlab] = weakref.WeakSet()

    def fetch(self, wanted: set["MappedSlab"]) -> None:
        """Some slabs are about to be read or written: where all that are there would be too much, the others go."""
        if all(slab in self._there for slab in wanted):
            return
        there = wanted.union(self._there)
        if sum(slab.nbytes for slab in there) > self.most:
            for slab in there - wanted:
                slab.let_go()
            there = wanted
        self._there = weakref.WeakSet(there)

    def tensor(self, heads: int, units: int, width: int, dtype: torch.dtype) -> Tensor:
        """[heads, units, width] in a file of its own, the units of each head from the beginning of a page on.

        Raises CapacityError where there is no room for it, or no file can be made.
        """
        rows = whole_pages(units, width * dtype.itemsize)
        size = heads * rows * width
        if not size:
            return torch.empty(heads, units, width, dtype=dtype, device="cpu")
        try:
            with TemporaryFile(dir=self._folder) as file:
                os.posix_fallocate(file.fileno(), 0, size * dtype.itemsize)
                place = f"/proc/self/fd/{file.fileno()}"
                whole = torch.from_file(place, shared=True, size=size, dtype=dtype)
        except (OSError, RuntimeError) as error:
            raise CapacityError(
                f"mapped: no file of {size * dtype.itemsize / MIB:,.1f} MiB can be made in {self._folder}: "
                f"{getattr(error, 'strerror', None) or error}; ask for fewer tokens, or give a path with more room"
            ) from error
        return whole.view(heads, rows, width)[:, :units]


class MappedSlab(Slab):
    """A slab in a file: the keys of one KV head after the other, then their values.

    Raises CapacityError where it is more than may be in memory at once, or where there is no room for its file.
    """

    files: Files

    def __init__(self, files: Files, kv_heads: int, capacity: int, head_dim: int, dtype: torch.dtype) -> None:
        row = head_dim * dtype.itemsize
        self.files = files
        self._nbytes = 2 * kv_heads * whole_pages(capacity, row) * row
        self._apart = False
        if self._nbytes > files.most:
            raise CapacityError(
                f"mapped: the units of {capacity:,} tokens in one layer take {self._nbytes / MIB:,.1f} MiB, and a step "
                f"reads a layer at once; use resident_mib of at least {math.ceil(self._nbytes / MIB)}"
            )
        both = files.tensor(2 * kv_heads, capacity, head_dim, dtype)
        self.keys, self.values = both[:kv_heads], both[kv_heads:]

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self._nbytes

    def run(self, start: int, stop: int) -> Dense:
        self.files.fetch({self})
        return super().run(start, stop)

    def let_go(self) -> None:
        """Take its pages out of this process's memory; what they hold stays."""
        self._advise(mmap.MADV_DONTNEED)

    def expect(self, *, apart: bool) -> None:
        """Pages are about to be read apart from each other, or one after the other: then those ahead come along."""
        if apart != self._apart:
            self._advise(mmap.MADV_RANDOM if apart else mmap.MADV_NORMAL)
            self._apart = apart

    def _advise(self, advice: int) -> None:
        if self._nbytes and _madvise()(self.keys.data_ptr(), self._nbytes, advice):
            raise OSError(ctypes.get_errno(), f"madvise: {os.strerror(ctypes.get_errno())}")


def whole_pages(units: int, size: int) -> int:
    """The least number of rows of `size` bytes, at least `units`, that are whole pages."""
    step = mmap.PAGESIZE // math.gcd(mmap.PAGESIZE, size)
    return -(-units // step) * step


def at_once(layers: Sequence[Sequence[LayerCache]]) -> int:
    """How many layers, from the first of some on, may be in memory together; at least one.

    layers: of each, the caches of all sequences that go through it.
    """
    found: dict[Files, set[MappedSlab]] = {}
    for count, caches in enumerate(layers):
        for slab in (slab for cache in caches for slab in _mapped(cache)):
            found.setdefault(slab.files, set()).add(slab)
        if count and any(sum(slab.nbytes for slab in slabs) > files.most for files, slabs in found.items()):
            return count
    return len(layers)


def fetch(reads: Iterable[tuple[LayerCache, bool]]) -> None:
    """Caches are about to be read where they lie, each whole or only some units (True), and written to."""
    found: dict[Files, set[MappedSlab]] = {}
    for cache, apart in reads:
        for slab in _mapped(cache):
            slab.expect(apart=apart)
            found.setdefault(slab.files, set()).add(slab)
    for files, slabs in found.items():
        files.fetch(slabs)


def _mapped(cache: LayerCache) -> list[MappedSlab]:
    return [slab for slab in cache.memory.slabs if isinstance(slab, MappedSlab)]


@functools.cache
def _madvise() -> Callable[[int, int, int], int]:
    """madvise(2): address, bytes, advice."""
    call = ctypes.CDLL(None, use_errno=True).madvise
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    found: Callable[[int, int, int], int] = call
    return found
