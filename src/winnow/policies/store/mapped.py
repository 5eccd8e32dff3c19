"""Units in files: a context may be larger than memory."""

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from winnow.cache.mapped import MIB, Files, MappedSlab
from winnow.cache.memory import Slab
from winnow.parameters import Count
from winnow.policies.base import ModelShape, Services, StorePolicy


@dataclass(frozen=True)
class Mapped(StorePolicy):
    """Hold units in files, of which a part is in memory at a time.

    path: a directory on the disk that is to hold them; None: the system's for temporary files, which on some systems
    is memory itself. resident_mib: MiB of units that are in memory at once, of a sequence and its forks together.
    Layers are read one after the other, and those that have been read are let go where the next would be too much: so
    each has to fit, with the units of the prompt and of all new tokens.

    Units are those of `plain`, and so is all that is computed. Room on the disk is taken when a sequence begins, for
    every token that may come, and given back when it ends, whatever ends it. Where a read policy chooses units, pages
    of the files are read that hold them, and no others: units of one KV head lie side by side, keys and values apart.
    What is in memory counts in `total_bytes`, the files in `disk_bytes`.
    """

    path: str | None = None
    resident_mib: Count = 256

    in_files = True
    name = "mapped"
    trial: ClassVar = {"resident_mib": 1}
    loads = ("path",)
    takes = "room on the disk"

    @property
    def folder(self) -> str:
        return tempfile.gettempdir() if self.path is None else self.path

    def validate(self, shape: ModelShape) -> None:
        self.require(sys.platform == "linux", "units are held in files on Linux only; use the store plain")
        self.require(os.path.isdir(self.folder), f"path={self.folder!r} is no directory; make it, or give another one")
        self.require(
            os.access(self.folder, os.W_OK | os.X_OK),
            f"path={self.folder!r} takes no files of this user's; give a directory that does",
        )

    def prepare(self, services: Services, ids: list[int] | None) -> None:
        self.require(
            services.device.type == "cpu",
            f"files are read by the CPU, and the model is on {services.device}; use the store plain",
        )

    def slabs(self, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> Callable[[int], Slab]:
        files = Files(self.folder, self.resident_mib * MIB)
        return lambda capacity: MappedSlab(files, kv_heads, capacity, head_dim, dtype)

    def in_memory(self, nbytes: int) -> int:
        return min(nbytes, self.resident_mib * MIB)
