"""Reading a GGUF header: what the gguf package writes is read back, and damage of every kind is one line."""

import os
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from gguf_files import TOKENS, write_gguf
from winnow.errors import ModelError, UnsupportedModelError
from winnow.models.gguf.config import config_of
from winnow.models.gguf.generation import generation_of
from winnow.models.gguf.header import Header, raw, read_header
from winnow.models.gguf.tokenizer import tokenizer_of

MAGIC = b"GGUF" + struct.pack("<I", 3)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    tensors = {"rope_freqs.weight": np.ones(4, np.float32), "half": np.arange(12, dtype=np.float16).reshape(3, 4)}
    keys = {"flags": [True, False], "floats": [0.5, 1.5], "flag": True, "below": -3, "text": "Wörter"}
    return write_gguf(tmp_path_factory.mktemp("gguf") / "whole.gguf", keys=keys, tensors=tensors).read_bytes()


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def key(name: str, kind: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + value


def tensor(name: str, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


ARCHITECTURE = key("general.architecture", 8, string("llama"))


def image(
    keys: list[bytes], tensors: list[bytes] | None = None, data: int = 256, counts: tuple[int, int] | None = None
) -> bytes:
    """A file of these keys and tensors, then `data` bytes from the next multiple of 32 on."""
    if tensors is None:
        tensors = []
    n_tensors, n_keys = counts or (len(tensors), len(keys))
    head = MAGIC + struct.pack("<QQ", n_tensors, n_keys) + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + bytes(data)


def test_what_the_gguf_package_writes_is_read_back(tmp_path, whole):
    path = tmp_path / "m.gguf"
    path.write_bytes(whole)
    header, reference = read_header(path), GGUFReader(path)
    assert header.version == 3
    assert header.architecture == "llama"
    fields = {name: field.contents() for name, field in reference.fields.items() if not name.startswith("GGUF.")}
    assert fields.keys() == header.metadata.keys()
    for name, value in fields.items():
        read = header.metadata[name]
        assert (read.tolist() if isinstance(read, np.ndarray) else read) == value, name
    assert header.metadata["tokenizer.ggml.tokens"] == TOKENS
    assert [t.name for t in reference.tensors] == list(header.tensors)
    for stored in reference.tensors:
        info = header.tensors[stored.name]
        assert info.type == stored.tensor_type
        assert info.shape == tuple(int(n) for n in stored.shape[::-1])
        assert info.offset == stored.data_offset
        assert info.nbytes == stored.n_bytes
        assert raw(header, stored.name).tobytes() == stored.data.tobytes()
    assert raw(header, "half").shape == (3, 8)
    assert not raw(header, "half").flags.writeable


DAMAGE: dict[str, tuple[bytes, str]] = {
    "no file of this kind": (b"<!DOCTYPE html>" + bytes(64), "starts with b'<!DO'"),
    "empty": (b"", "is empty"),
    "three bytes": (b"GGU", "starts with b'GGU'"),
    "version 1": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF version 1"),
    "version 4": (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), "GGUF version 4"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "cut in the counts": (MAGIC + b"\1\0\0", "the number of tensors needs 8 bytes"),
    "2**60 keys": (image([ARCHITECTURE], counts=(0, 2**60)), "a header of 1,152,921,504,606,846,976 keys"),
    "2**60 tensors": (image([ARCHITECTURE], counts=(2**60, 1)), "a table of 1,152,921,504,606,846,976 tensors"),
    "a text of 2**62 bytes": (image([key("general.architecture", 8, struct.pack("<Q", 2**62))]), "needs 4,611,686,"),
    "2**61 numbers": (image([key("a", 9, struct.pack("<IQ", 4, 2**61))]), "the value of 'a' needs"),
    "2**61 strings": (image([key("a", 9, struct.pack("<IQ", 8, 2**61))]), "the value of 'a' needs"),
    "strings that end early": (
        image([key("a", 9, struct.pack("<IQ", 8, 2) + string("x") + b"\xff\0\0\0\0\0\0\0")], data=80),
        "says 2 strings",
    ),
    "an array of arrays": (image([key("a", 9, struct.pack("<IQ", 9, 1))]), "an array of arrays"),
    "a value type 13": (image([key("a", 13, bytes(8))]), "the type 13, which does not exist"),
    "a type of array 77": (image([key("a", 9, struct.pack("<IQ", 77, 1))]), "the type 77, which does not exist"),
    "a key that is not UTF-8": (image([struct.pack("<Q", 2) + b"\xff\xfe" + bytes(12)]), "is not UTF-8"),
    "text that is not UTF-8": (image([key("a", 8, struct.pack("<Q", 1) + b"\xff")]), "is not UTF-8"),
    "strings not UTF-8": (image([key("a", 9, struct.pack("<IQQ", 8, 1, 1) + b"\xff")]), "that is not UTF-8"),
    "a key twice": (image([ARCHITECTURE, ARCHITECTURE]), "'general.architecture' occurs twice"),
    "a key without a name": (image([key("", 8, string("x"))]), "a key has no name"),
    "no architecture": (image([key("a", 8, string("x"))]), "general.architecture is missing"),
    "an architecture that is a number": (
        image([key("general.architecture", 4, bytes(4))]),
        "general.architecture is 0",
    ),
    "alignment 0": (image([ARCHITECTURE, key("general.alignment", 4, bytes(4))]), "general.alignment is 0"),
    "alignment 24": (image([ARCHITECTURE, key("general.alignment", 4, b"\x18\0\0\0")]), "general.alignment is 24"),
    "alignment 2**31": (image([ARCHITECTURE, key("general.alignment", 4, b"\0\0\0\x80")]), "alignment is 2147483648"),
    "alignment true": (image([ARCHITECTURE, key("general.alignment", 7, b"\1")]), "general.alignment is True"),
    "one part of three": (image([ARCHITECTURE, key("split.count", 2, b"\3\0")]), "one of 3 parts"),
    "parts that are text": (image([ARCHITECTURE, key("split.count", 8, string("3"))]), "split.count is '3'"),
    "a tensor twice": (image([ARCHITECTURE], [tensor("t", [4]), tensor("t", [4], offset=32)]), "'t' occurs twice"),
    "a tensor without a name": (image([ARCHITECTURE], [tensor("", [4])]), "a tensor has no name"),
    "no dimensions": (image([ARCHITECTURE], [tensor("t", [])]), "has 0 dimensions"),
    "five dimensions": (image([ARCHITECTURE], [tensor("t", [1] * 5)]), "has 5 dimensions"),
    "a dimension of 0": (image([ARCHITECTURE], [tensor("t", [4, 0])]), "has the shape [0, 4]"),
    "dimensions that overflow": (image([ARCHITECTURE], [tensor("t", [2**63, 2**63])]), "the tensor 't' ends at byte"),
    "33 values of Q8_0": (image([ARCHITECTURE], [tensor("t", [33, 32], kind=8)]), "are multiples of 32"),
    "a tensor type 99": (image([ARCHITECTURE], [tensor("t", [4], kind=99)]), "the type 99, which is unknown"),
    "an offset of 3": (image([ARCHITECTURE], [tensor("t", [4], offset=3)]), "not at a multiple of 32"),
    "tensors that overlap": (image([ARCHITECTURE], [tensor("t", [16]), tensor("u", [4], offset=32)]), "overlaps 't'"),
    "an offset behind the end": (image([ARCHITECTURE], [tensor("t", [4], offset=2**40)]), "ends at byte 1,099,511,"),
    "a tensor longer than the file": (image([ARCHITECTURE], [tensor("t", [65])]), "ends at byte"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_one_line_that_names_the_file_and_the_way_out(tmp_path, damage):
    content, message = DAMAGE[damage]
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        read_header(path)
    text = str(caught.value)
    assert text.startswith("broken.gguf: ")
    assert message in text
    assert "\n" not in text
    assert "; " in text


def test_what_is_no_regular_file_is_refused_without_reading_it(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    for path in (tmp_path, tmp_path / "pipe.gguf", Path("/dev/zero")):
        with pytest.raises(ModelError, match="is not a regular file"):
            read_header(path)
    for path in (tmp_path / "none.gguf", Path("a\0b"), tmp_path / ("x" * 5000)):
        with pytest.raises(ModelError, match="cannot be read"):
            read_header(path)


def check_consistent(header: Header) -> None:
    """Every byte that the header promises is there, once."""
    size = header.path.stat().st_size
    end = 0
    for info in sorted(header.tensors.values(), key=lambda info: info.offset):
        assert info.offset >= end
        assert info.offset + info.nbytes <= size
        end = info.offset + info.nbytes
        assert raw(header, info.name).size == info.nbytes


def cut(content: bytearray, source: random.Random) -> None:
    del content[source.randrange(len(content)) :]


def flip(content: bytearray, source: random.Random) -> None:
    for _ in range(source.randint(1, 4)):
        content[source.randrange(min(len(content), 6000))] ^= 1 << source.randrange(8)


def huge_count(content: bytearray, source: random.Random) -> None:
    """A length or count, wherever eight bytes look like one, becomes enormous."""
    places = [at for at in range(8, 6000) if content[at + 2 : at + 8] == bytes(6) and content[at]]
    at = source.choice(places)
    content[at : at + 8] = struct.pack("<Q", source.choice([2**24, 2**31, 2**40, 2**62, 2**64 - 1]))


def swap(content: bytearray, source: random.Random) -> None:
    """A few bytes of another place."""
    length = source.randint(1, 40)
    start, end = source.randrange(6000), source.randrange(6000)
    content[start : start + length] = content[end : end + length]


MUTATORS: tuple[Callable[[bytearray, random.Random], None], ...] = (cut, flip, huge_count, swap)


def refusal(build: Callable[[Any], Any], given: Any) -> str | None:
    """The one line of a refusal; anything else that is raised fails the test."""
    try:
        build(given)
    except ModelError as error:
        return str(error)
    return None


def test_300_mutations_are_refused_or_give_a_consistent_header_in_bounded_memory(tmp_path, whole):
    """Also what is made of the header: a configuration, a tokenizer and generation defaults, or one line."""
    source = random.Random(15)
    path = tmp_path / "mutated.gguf"
    refusals = []
    tracemalloc.start()
    for case in range(300):
        content = bytearray(whole)
        MUTATORS[case % len(MUTATORS)](content, source)
        path.write_bytes(content)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        refused = refusal(read_header, path)
        assert tracemalloc.get_traced_memory()[1] - before < 2**20 + 20 * len(content)
        if refused is None:
            header = read_header(path)
            check_consistent(header)
            builders = (config_of, tokenizer_of, lambda header: generation_of(header, tokenizer_of(header)))
            refusals += [line for build in builders if (line := refusal(build, header))]
        else:
            refusals.append(refused)
    tracemalloc.stop()
    assert len(refusals) > 100
    assert all("\n" not in line and len(line) < 1500 for line in refusals)


def test_a_header_longer_than_any_real_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("winnow.models.gguf.header.HEADER_LIMIT", 4096)
    path = tmp_path / "long.gguf"
    path.write_bytes(image([ARCHITECTURE, key("a", 9, struct.pack("<IQ", 0, 8192) + bytes(8192))]))
    with pytest.raises(ModelError, match="the first 0 MiB has"):
        read_header(path)


def test_an_unknown_architecture_is_refused_by_name(tmp_path):
    with pytest.raises(UnsupportedModelError, match=r"the architecture 'mamba'.*supported are llama, qwen2"):
        config_of(read_header(write_gguf(tmp_path / "m.gguf", "mamba")))
