"""The header of a GGUF file: its metadata and where each tensor lies, read without trusting a single count.

The layout is that of ggml's docs/gguf.md. `gguf.GGUFReader` reads the same, but walks arrays element by element (15
seconds for a vocabulary of 49,152) and believes every length it meets.
"""

import stat
import struct
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from winnow.errors import ModelError

VERSIONS = (2, 3)  # 1 counted in 32 bits; no file of a model that Winnow drives has it
# No known header is longer than 40 MiB; what is read here stays within a small multiple of this.
HEADER_LIMIT = 256 * 2**20
MAX_DIMS = 4
MAX_ALIGNMENT = 2**20
DEFAULT_ALIGNMENT = 32

_STRING, _ARRAY = 8, 9
_BOOL = 7
_NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8"}
_NUMBERS[_BOOL] = "u1"
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class TensorInfo(NamedTuple):
    """shape: rows first, as numpy and torch count. offset: in bytes from the file's start. nbytes: as stored."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    """metadata: numbers, bools, strings, lists of strings and numpy arrays of numbers, by key.
    tensors: by name, in the file's order."""

    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]

    @cached_property
    def architecture(self) -> str:
        return self.metadata["general.architecture"]


def read_header(path: str | Path) -> Header:
    """Read and check the header of a GGUF file.

    Raises:
        ModelError: there is no such file, it is not a little-endian GGUF file of version 2 or 3, it is one part of a
            split file, or something in it is damaged: a count or length beyond the file, a value type that does not
            exist, a name that occurs twice, a tensor that is not aligned, overlaps another or ends behind the file.
    """
    path = Path(path)
    size = _file_size(path)
    scan = _Scan(path, size)
    version, tensor_count, key_count = scan.preamble()
    metadata = scan.metadata(key_count)
    alignment = _check_metadata(metadata, scan)
    tensors = scan.tensors(tensor_count)
    start = -(-scan.at // alignment) * alignment
    placed = {info.name: info._replace(offset=start + info.offset) for info in tensors.values()}
    _check_places(placed, alignment, scan)
    return Header(path, version, metadata, placed)


def raw(header: Header, name: str) -> np.ndarray:
    """The stored bytes of a tensor as a read-only map of the file: [*shape[:-1], bytes of a row] uint8."""
    info = header.tensors[name]
    rows = info.shape[:-1]
    return np.memmap(header.path, np.uint8, "r", info.offset, (*rows, info.nbytes // prod(rows)))


def _file_size(path: Path) -> int:
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"{path}: cannot be read ({reason}); give the path of a .gguf file") from None
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"{path}: is not a regular file; give the path of a .gguf file")
    if status.st_size == 0:
        raise ModelError(f"{path.name}: is empty; download it again")
    return status.st_size


class _Scan:
    """A place `at` in the mapped bytes that moves on; every length is checked before anything is made of it."""

    def __init__(self, path: Path, size: int) -> None:
        self.name, self.size, self.at = path.name, size, 0
        try:
            self.data = np.memmap(path, np.uint8, "r", shape=(min(size, HEADER_LIMIT),)).data
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ModelError(f"{path}: cannot be read ({reason}); give the path of a .gguf file") from None

    def refuse(self, what: str, way_out: str = "the file is damaged: download it again") -> NoReturn:
        raise ModelError(f"{self.name}: {what}; {way_out}")

    def take(self, count: int, width: int, what: str) -> int:
        """The place of `count` items of at least `width` bytes each, which must be there."""
        left = len(self.data) - self.at
        if count * width > left:
            where = "file" if len(self.data) == self.size else f"first {HEADER_LIMIT // 2**20} MiB"
            self.refuse(f"{what} needs {count * width:,} bytes at byte {self.at:,}, the {where} has {left:,} left")
        return self.at

    def fixed(self, form: struct.Struct, what: str) -> Any:
        start = self.take(1, form.size, what)
        self.at = start + form.size
        return form.unpack_from(self.data, start)[0]

    def preamble(self) -> tuple[int, int, int]:
        """Magic and version -> version, number of tensors, number of keys."""
        magic = bytes(self.data[:4])
        if magic != b"GGUF":
            self.refuse(f"starts with {magic!r}, not with b'GGUF'", "it is no GGUF file, or an incomplete download")
        self.at = 4
        version = self.fixed(_U32, "the version")
        if version not in VERSIONS:
            if version & 0xFFFF == 0 and version:
                self.refuse("is a big-endian GGUF file", "get the little-endian one")
            self.refuse(f"has GGUF version {version}", f"versions {' and '.join(map(str, VERSIONS))} can be read")
        return version, self.fixed(_U64, "the number of tensors"), self.fixed(_U64, "the number of keys")

    def string(self, what: str) -> str:
        length = self.fixed(_U64, f"the length of {what}")
        start = self.take(length, 1, what)
        self.at = start + length
        try:
            return str(self.data[start : self.at], "utf-8")
        except UnicodeDecodeError:
            self.refuse(f"{what} at byte {start:,} is not UTF-8 text")

    def metadata(self, count: int) -> dict[str, Any]:
        self.take(count, 8 + 4 + 1, f"a header of {count:,} keys")
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self.string("a key's name")
            if not key or key in found:
                self.refuse(f"the key {key[:80]!r} occurs twice" if key else "a key has no name")
            found[key] = self.value(self.fixed(_U32, "a value's type"), f"the value of {key[:80]!r}")
        return found

    def value(self, kind: int, what: str) -> Any:
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self.array(what)
        return self.numbers(kind, 1, what)[0].item()

    def array(self, what: str) -> list[str] | np.ndarray:
        kind = self.fixed(_U32, f"the type of {what}")
        count = self.fixed(_U64, f"the length of {what}")
        if kind == _ARRAY:
            self.refuse(f"{what} is an array of arrays, which no known key is")
        return self.strings(count, what) if kind == _STRING else self.numbers(kind, count, what)

    def numbers(self, kind: int, count: int, what: str) -> np.ndarray:
        if kind not in _NUMBERS:
            self.refuse(f"{what} has the type {kind}, which does not exist")
        dtype = np.dtype(_NUMBERS[kind])
        start = self.take(count, dtype.itemsize, what)
        self.at = start + count * dtype.itemsize
        stored = np.frombuffer(self.data, dtype, count, start)
        return stored != 0 if kind == _BOOL else stored.copy()  # a copy: the map is not kept open

    def strings(self, count: int, what: str) -> list[str]:
        """One tight loop: a vocabulary and its merges are a hundred thousand strings."""
        at = self.take(count, 8, what)
        data, end, length_at = self.data, len(self.data), _U64.unpack_from
        found = []
        try:
            for _ in range(count):
                start = at + 8
                at = start + length_at(data, at)[0]
                if at > end:
                    break
                found.append(str(data[start:at], "utf-8"))
        except UnicodeDecodeError:
            self.refuse(f"{what} holds text at byte {start:,} that is not UTF-8")
        except struct.error:
            at = end + 1
        if at > end:
            self.refuse(f"{what} says {count:,} strings, of which {len(found):,} are there")
        self.at = at
        return found

    def tensors(self, count: int) -> dict[str, TensorInfo]:
        """By name; offsets from the start of the tensors' data, which is not known before the last was read."""
        self.take(count, 8 + 4 + 8 + 4 + 8, f"a table of {count:,} tensors")
        found: dict[str, TensorInfo] = {}
        for _ in range(count):
            name = self.string("a tensor's name")
            if not name or name in found:
                self.refuse(f"the tensor {name[:80]!r} occurs twice" if name else "a tensor has no name")
            found[name] = self.tensor(name)
        return found

    def tensor(self, name: str) -> TensorInfo:
        what = f"the tensor {name[:80]!r}"
        dims = self.fixed(_U32, f"the dimensions of {what}")
        if not 1 <= dims <= MAX_DIMS:
            self.refuse(f"{what} has {dims:,} dimensions; 1 to {MAX_DIMS} are possible")
        shape = tuple(self.fixed(_U64, f"the shape of {what}") for _ in range(dims))[::-1]
        kind, offset = self.fixed(_U32, f"the type of {what}"), self.fixed(_U64, f"the offset of {what}")
        try:
            type_ = GGMLQuantizationType(kind)
            block, width = GGML_QUANT_SIZES[type_]
        except (ValueError, KeyError):
            self.refuse(f"{what} has the type {kind}, which is unknown", "a newer version of gguf may know it")
        if 0 in shape or shape[-1] % block:
            self.refuse(f"{what} has the shape {list(shape)}; rows of type {type_.name} are multiples of {block}")
        return TensorInfo(name, type_, shape, offset, prod(shape) // block * width)


def _check_metadata(metadata: dict[str, Any], scan: _Scan) -> int:
    """Check the keys that reading depends on; returns the alignment of tensors in bytes."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        scan.refuse(f"general.architecture is {_shown(architecture)}, not a name")
    parts = metadata.get("split.count", 0)
    if type(parts) is not int:
        scan.refuse(f"split.count is {_shown(parts)}, not a count")
    if parts > 1:
        scan.refuse(f"is one of {parts:,} parts of a file", "join them with `llama-gguf-split --merge`")
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        scan.refuse(f"general.alignment is {_shown(alignment)}, not a power of two from 8 to {MAX_ALIGNMENT:,}")
    return alignment


def _shown(value: Any) -> str:
    """A value in a message: short, on one line."""
    text = "missing" if value is None else repr(value)
    return " ".join(text.split())[:80]


def _check_places(tensors: dict[str, TensorInfo], alignment: int, scan: _Scan) -> None:
    end, before = 0, ""
    for info in sorted(tensors.values(), key=lambda info: info.offset):
        what = f"the tensor {info.name[:80]!r}"
        if info.offset % alignment:
            scan.refuse(f"{what} begins at byte {info.offset:,}, not at a multiple of {alignment}")
        if info.offset < end:
            scan.refuse(f"{what} overlaps {before[:80]!r}")
        end, before = info.offset + info.nbytes, info.name
        if end > scan.size:
            scan.refuse(f"{what} ends at byte {end:,}, the file at {scan.size:,}")
