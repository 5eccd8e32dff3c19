"""Few rows on their way through layers that are taken by the kernel, in one call or with an attention between two."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from winnow.kernels.launch import parts_of_work, running_threads
from winnow.kernels.layers import tables as t
from winnow.kernels.packed.weight import ROWS

if TYPE_CHECKING:
    from winnow.runtime.program import Program


class Reads(NamedTuple):
    """What rows read, in the form that the kernel takes: see `tables.py`.

    choices: None where nobody chooses. most: pieces of runs in a layer; rows: that read one together; pages: among
    which a row chooses.
    """

    places: np.ndarray
    runs: np.ndarray
    shares: np.ndarray
    heads: np.ndarray
    choices: np.ndarray | None
    most: int
    rows: int
    asked: int


class FewRows:
    """Rows [rows, hidden] and the memory that layers need for them.

    The memory is theirs alone: whoever is given projections may keep them.
    """

    def __init__(self, program: "Program", hidden: Tensor) -> None:
        shape, self._program, self._live = program.shape, program, len(hidden)
        self._rows = self._live if self._live == 1 else -(-self._live // ROWS) * ROWS
        self._x = hidden.new_zeros(self._rows, shape.hidden)
        self._x[: self._live] = hidden
        heads = (shape.q_heads, shape.kv_heads, shape.head_dim)
        self._buffer = hidden.new_empty(t.activations(self._rows, shape.hidden, shape.mlp, *heads))

    @property
    def hidden(self) -> Tensor:
        """[rows, hidden]."""
        return self._x[: self._live]

    @property
    def projections(self) -> tuple[Tensor, Tensor, Tensor]:
        """q [rows, q_heads, head_dim], and k, v alike, of the last layer: rotated where its attention was taken too."""
        shape = self._program.shape
        heads = (shape.q_heads, shape.kv_heads, shape.kv_heads)
        q, k, v = self._part(self._rows * shape.hidden, sum(heads)).split(heads, 1)
        return q, k, v

    @property
    def attended(self) -> Tensor:
        """[rows, q_heads, head_dim], what attention has given, or is to be put."""
        shape = self._program.shape
        before = shape.hidden + (2 * shape.q_heads + 2 * shape.kv_heads) * shape.head_dim
        return self._part(self._rows * before, shape.q_heads)

    def take(self, first: int, layers: int, stages: int, reads: Reads | None = None) -> None:
        """Take the rows through some layers from `first` on, or through the `stages` of them that are named."""
        from winnow.kernels.attend.cpu_decode import work_floats
        from winnow.kernels.layers.cpu import layers_kernel, room_bytes
        from winnow.kernels.team import TEAM

        program, shape, threads = self._program, self._program.shape, parts_of_work()
        vectors = shape.q_heads // shape.kv_heads * (1 if reads is None else reads.rows)
        work = 4 * work_floats(-(-vectors // ROWS) * ROWS, shape.head_dim)
        widest = max(shape.hidden, shape.mlp, shape.q_heads * shape.head_dim)
        room = room_bytes(self._rows, widest, vectors, shape.head_dim, 0 if reads is None else reads.asked)
        tables = [None] * 5 if reads is None else reads[:5]
        frame, team, members = np.empty(t.FRAME, dtype=np.int64), np.zeros(TEAM, dtype=np.int64), running_threads()
        frame[:] = (
            program.layers[first:].ctypes.data, *(0 if each is None else each.ctypes.data for each in tables),
            self._x.data_ptr(), self._buffer.data_ptr(),
            program.memory("work", work * (0 if reads is None else reads.most)), work,
            program.memory("scratch", room * threads), room, self._rows, self._live, shape.hidden, shape.mlp,
            shape.q_heads, shape.kv_heads, shape.head_dim, threads, team.ctypes.data, stages,
        )  # fmt: skip
        layers_kernel(members, frame.ctypes.data, layers, self._x.dtype == torch.bfloat16)

    def _part(self, start: int, heads: int) -> Tensor:
        """[rows, heads, head_dim] of the memory, from a value on."""
        head_dim = self._program.shape.head_dim
        return self._buffer[start : start + self._rows * heads * head_dim].view(-1, heads, head_dim)[: self._live]
