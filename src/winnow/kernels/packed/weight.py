"""A weight held as small integers: groups of columns that share a scale and, in some kinds, a minimum.

The layout is portable, the same on every CPU: a row is [scales float16][minima float16, where the kind has any][codes].
A column's value is (code - zero) * scale + minimum, where zero is 8 for codes of 4 bits without minima, else 0. Codes
of 8 bits are signed. Of 4 bits, 64 columns share 32 bytes: byte i has the code of column i in its lower half and that
of column 32 + i in its upper one, so that either half of the bytes is 32 columns in order. Where a row ends with half
of such a pair, the upper halves are 0.

In tiles, sixteen rows are held together, so that a vector has the same columns of all of them. A tile has as many
bytes as its rows, and in them, for every block of 32 columns, one after the other: scales float16 [groups, rows],
minima alike, and codes [words, rows, 4], a word being four columns of a row. Codes of 8 bits are stored 128 too high;
of 4 bits the first four words are in the lower halves of the bytes and the last four in the upper ones.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

KINDS = ((4, 32), (4, 16), (8, 32), (8, 16))  # bits of a code, columns of a group
BLOCK = 32  # columns come in whole blocks, of which codes of 4 bits pair two
TILE = 16  # rows whose codes lie side by side where a weight is in tiles
ROWS = 4  # what counts of several rows of x are filled up to, which meet a tile's codes together
WORDS = BLOCK // 4  # of four columns, in a block


def code_bytes(columns: int, bits: int) -> int:
    """Bytes of the codes of a row."""
    return columns if bits == 8 else BLOCK * -(-columns // (2 * BLOCK))


def row_bytes(columns: int, bits: int, group: int, minima: bool) -> int:
    """Bytes of a row: scales, minima and codes."""
    return 2 * (columns // group) * (2 if minima else 1) + code_bytes(columns, bits)


def tiles_bytes(rows: int, columns: int, bits: int, group: int, minima: bool) -> int:
    """Bytes of a weight in tiles."""
    return (rows + -rows % TILE) * row_bytes(columns, bits, group, minima)


@dataclass(frozen=True)
class PackedWeight:
    """A weight [rows, columns]. data: [rows, row_bytes] uint8, contiguous; kind: an index of KINDS.

    tiled: of a weight in tiles, how many rows it has: the last tile may be filled up with others. None: it is not.
    """

    data: Tensor
    columns: int
    kind: int
    minima: bool
    tiled: int | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.data) if self.tiled is None else self.tiled, self.columns

    @property
    def bits(self) -> int:
        return KINDS[self.kind][0]

    @property
    def group(self) -> int:
        return KINDS[self.kind][1]

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @property
    def facts(self) -> tuple[int, int, int, int, int]:
        """What kernels are told: the address, bytes of a row, rows, columns, columns of a group."""
        return self.data.data_ptr(), self.data.shape[1], self.shape[0], self.columns, self.group

    def __deepcopy__(self, memo: dict[int, Any]) -> "PackedWeight":
        """Itself: nothing changes it."""
        return self

    def __getitem__(self, rows: slice) -> "PackedWeight":
        """Some of the rows, sharing their memory, but for tiles of which only some rows are taken."""
        start, stop, _ = rows.indices(self.shape[0])
        if self.tiled is None:
            return replace(self, data=self.data[start:stop])
        if start % TILE or (stop % TILE and stop != self.tiled):
            return self.picked(torch.arange(start, stop, device=self.data.device)).in_tiles()
        return replace(self, data=self.data[start : stop + -stop % TILE], tiled=stop - start)

    def in_tiles(self) -> "PackedWeight":
        """The same weight in tiles; what fills up the last one stands for 0."""
        if self.tiled is not None:
            return self
        data = F.pad(self.data, (0, 0, 0, -len(self.data) % TILE))
        tiles, blocks, per = len(data) // TILE, self.columns // BLOCK, BLOCK // self.group
        heads, size = 1 + self.minima, 2 * blocks * per
        factors = [
            data[:, size * i : size * (i + 1)].unflatten(1, (blocks, per, 2)).unflatten(0, (tiles, TILE))
            for i in range(heads)
        ]
        codes = data[:, size * heads :]
        if self.bits == 8:
            codes = codes ^ 128
        else:
            pairs = codes.unflatten(1, (-1, BLOCK))
            codes = torch.stack((pairs & 15, pairs >> 4), 2).flatten(1)[:, : self.columns]
        words = codes.unflatten(1, (blocks, WORDS, 4)).unflatten(0, (tiles, TILE)).permute(0, 2, 3, 1, 4)
        if self.bits == 4:
            words = words[:, :, : WORDS // 2] | words[:, :, WORDS // 2 :] << 4
        made = [*(factor.permute(0, 2, 3, 1, 4).flatten(2) for factor in factors), words.flatten(2)]
        tiled = torch.cat(made, 2).flatten(1)
        tiled = F.pad(tiled, (0, TILE * data.shape[1] - tiled.shape[1]))
        return replace(self, data=tiled.view_as(data), tiled=len(self.data))

    def picked(self, rows: Tensor) -> "PackedWeight":
        """Some of the rows, by number, [n] int64; not in tiles."""
        if self.tiled is None:
            return replace(self, data=self.data[rows])
        per, size, blocks = BLOCK // self.group, self._factors, self._blocks()
        tile, lane = rows // TILE, rows % TILE
        factors = blocks[:, :, :size].unflatten(2, (1 + self.minima, per, TILE, 2))[tile, :, :, :, lane]
        factors = factors.transpose(1, 2).flatten(1)  # scales of all groups before minima
        words = blocks[:, :, size:].unflatten(2, (-1, TILE, 4))[tile, :, :, lane]  # [n, blocks, words, 4]
        if self.bits == 8:
            codes = (words ^ 128).flatten(1)
        else:
            codes = in_pairs(torch.cat((words & 15, words >> 4), 2).flatten(1))
        return replace(self, data=torch.cat((factors, codes), 1), tiled=None)

    def checked(self) -> "PackedWeight":
        """This weight. Raises ValueError where its bytes are not those of such rows, or a scale is NaN or infinite."""
        row = row_bytes(self.columns, self.bits, self.group, self.minima)
        if self.data.dtype != torch.uint8 or self.data.ndim != 2 or self.data.shape[1] != row:
            raise ValueError(f"rows of {list(self.data.shape)[1:]} bytes where {self.columns} columns take {row}")
        if self.tiled is not None and len(self.data) != self.tiled + -self.tiled % TILE:
            raise ValueError(f"{len(self.data)} rows in the tiles of {self.tiled}")
        head = 2 * (self.columns // self.group) * (1 + self.minima)
        factors = self.data[:, :head] if self.tiled is None else self._blocks()[:, :, : self._factors]
        if not bool(factors.contiguous().view(torch.float16).isfinite().all()):
            raise ValueError("a scale that is NaN or infinite")
        return self

    @property
    def _factors(self) -> int:
        """Bytes of the scales and minima of a block of a tile."""
        return 2 * TILE * (BLOCK // self.group) * (1 + self.minima)

    def _blocks(self) -> Tensor:
        """Of a weight in tiles: [tiles, blocks, bytes of a block]."""
        blocks, size = self.columns // BLOCK, self._factors + TILE * BLOCK * self.bits // 8
        return self.data.view(-1, TILE * self.data.shape[1])[:, : blocks * size].unflatten(1, (blocks, size))

    def at(self, flat: Tensor) -> Tensor:
        """The values at indices of the flattened weight, [n] int64 -> [n] float32."""
        rows, inverse = torch.unique(flat // self.columns, return_inverse=True)
        return self.picked(rows).float()[inverse, flat % self.columns]

    def float(self) -> Tensor:
        """[rows, columns] float32: the definition of what a packed weight stands for."""
        if self.tiled is not None:
            return self.picked(torch.arange(self.tiled, device=self.data.device)).float()
        groups = self.columns // self.group
        scales, minima, codes = self.parts()
        values = codes.float().unflatten(1, (groups, self.group)) * scales[..., None]
        # Without minima 0 is added, as the kernels do: a code of 0 times a negative scale is -0.
        return (values + (minima[..., None] if self.minima else 0.0)).flatten(1)

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Scales [rows, groups], minima [rows, groups or 0] float32, codes less their zero [rows, columns] int16."""
        groups = self.columns // self.group
        head = 2 * groups * (2 if self.minima else 1)
        factors = self.data[:, :head].contiguous().view(torch.float16).float()
        codes = self.data[:, head:]
        if self.bits == 8:
            codes = codes.contiguous().view(torch.int8).short()
        else:
            pairs = codes.unflatten(1, (-1, BLOCK))
            both = torch.stack((pairs & 15, pairs >> 4), 2).flatten(1)[:, : self.columns]
            codes = both.short() - (0 if self.minima else 8)
        return factors[:, :groups], factors[:, groups:], codes


def in_pairs(codes: Tensor) -> Tensor:
    """Codes of 4 bits [rows, columns] as the bytes of rows."""
    pairs = F.pad(codes, (0, -codes.shape[1] % (2 * BLOCK))).unflatten(1, (-1, 2, BLOCK))
    return (pairs[:, :, 0] | (pairs[:, :, 1] << 4)).flatten(1)


def pack(codes: Tensor, scales: Tensor, minima: Tensor | None) -> PackedWeight | None:
    """Codes [rows, columns], 0 .. 15 as uint8 or -128 .. 127 as int8, scales and minima [rows, groups] float32.

    None where float16 cannot hold the scales and minima to the precision of bfloat16, relative to a row's largest.
    """
    columns = codes.shape[1]
    bits = 4 if codes.dtype == torch.uint8 else 8
    factors = [scales] if minima is None else [scales, minima]
    halves = [factor.half() for factor in factors]
    for factor, half in zip(factors, halves, strict=True):
        off = (half.float() - factor).abs().amax(1)
        if not bool((off <= 2**-9 * factor.abs().amax(1)).all()):  # also where it is NaN or infinite
            return None
    data = codes.view(torch.uint8)
    if bits == 4:
        data = in_pairs(codes)
    joined = torch.cat([*(half.contiguous().view(torch.uint8) for half in halves), data], 1)
    kind = KINDS.index((bits, columns // scales.shape[1]))
    return PackedWeight(joined.contiguous(), columns, kind, minima is not None)


def quantize(weight: Tensor, bits: int) -> PackedWeight | None:
    """Round to nearest in groups of 32: 4 bits from the least to the largest of a group, 8 bits symmetrically.

    weight: [rows, columns]; None where its columns are no multiple of 32, or float16 cannot hold the scales.
    """
    if weight.shape[1] % BLOCK:
        return None
    groups = weight.detach().float().unflatten(1, (-1, BLOCK))
    if bits == 8:
        scales = (groups.abs().amax(2) / 127).half().float()
        codes = (groups / scales.clamp_min(1e-12)[..., None]).round().clamp(-127, 127)
        return pack(codes.flatten(1).to(torch.int8), scales, None)
    least = groups.amin(2).half().float()
    scales = ((groups.amax(2) - least) / 15).half().float()
    codes = ((groups - least[..., None]) / scales.clamp_min(1e-12)[..., None]).round().clamp(0, 15)
    return pack(codes.flatten(1).to(torch.uint8), scales, least)
