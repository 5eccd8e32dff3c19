"""GGUF files whose tensors or header are wrong: one line each, nothing kept of them, memory bounded."""

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T

from covering import covered, marked
from forked import run_commands
from gguf_files import write_gguf
from gguf_models import SCALES, SMALL, WIDE, Shape, random_tensor, shape_for, write_model
from winnow import LLM, SamplingParams
from winnow.errors import WinnowError
from winnow.models.gguf.blocks import PACKABLE

FILES = 300
PARTS = [(part,) for part in range(0, FILES, 50)]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WINNOW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def refused(path: Path, home: Path) -> str:
    with pytest.raises(WinnowError) as error:
        LLM(path, device="cpu")
    assert "\n" not in str(error.value)
    assert not list(home.glob("gguf/*")) + list(home.glob("gguf/.*"))
    return str(error.value)


def damaged(path: Path, name: str, at: int, value: bytes) -> None:
    """Overwrite bytes of a tensor's data."""
    from winnow.models.gguf.header import read_header

    offset = read_header(path).tensors[name].offset
    raw = bytearray(path.read_bytes())
    raw[offset + at : offset + at + len(value)] = value
    path.write_bytes(raw)


@covered(bad=[np.nan, np.inf, -np.inf], type=[*PACKABLE, T.F32, T.F16, T.IQ3_S])
def test_what_is_not_finite_is_named(type: T, bad: float, tmp_path: Path, home: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "qwen3", lambda name: type, shape=shape_for(type)).path
    at = {T.TQ2_0: 64}.get(type, SCALES.get(type, (0,))[-1])
    damaged(path, "blk.1.ffn_up.weight", at, np.array(bad, np.float32 if type == T.F32 else np.float16).tobytes())
    assert "the tensor blk.1.ffn_up.weight holds NaN or infinity" in refused(path, home)


@pytest.mark.parametrize("name", ["blk.0.attn_norm.weight", "output_norm.weight", "blk.1.ffn_down.weight"])
def test_a_missing_tensor_is_named(name: str, tmp_path: Path, home: Path) -> None:
    assert "lacks 1 tensors" in refused(changed(tmp_path, {name: None}), home)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"blk.0.nonsense.weight": np.ones(4, np.float32)}, "blk.0.nonsense.weight"),
        ({"blk.1.attn_norm.weight": np.ones(95, np.float32)}, r"shape \[95\]"),
        ({"blk.1.attn_norm.weight": np.ones((1, 96), np.float32)}, r"shape \[1, 96\]"),
        ({"blk.1.ffn_up.weight": np.ones((96, 160), np.float32)}, r"shape \[96, 160\]"),
        ({"blk.1.ffn_up.weight": np.ones((160, 96, 1), np.float32)}, r"shape \[160, 96, 1\]"),
        ({"blk.1.ffn_up.weight": np.ones((160, 96), np.float64)}, "F64"),
        ({"blk.1.ffn_up.weight": np.ones((160, 96), np.int8)}, "I8"),
        ({"blk.1.ffn_up.weight": (np.ones((160, 96 // 32 * 40), np.uint8), T.Q8_1)}, "Q8_1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_tensor_that_does_not_belong_is_named(tensors: dict[str, Any], said: str, tmp_path: Path, home: Path) -> None:
    assert re.search(said, refused(changed(tmp_path, tensors), home))


def changed(tmp_path: Path, tensors: dict[str, Any], shape: Shape = SMALL) -> Path:
    """A model with some tensors replaced or, None, left out."""
    import gguf_models

    rng = np.random.default_rng(0)
    stored: dict[str, Any] = {
        name: np.ones(size, np.float32) if len(size) == 1 else (random_tensor(rng, T.Q4_1, *size), T.Q4_1)
        for name, (_, size) in gguf_models._places("llama", shape, True).items()
    }
    return write_gguf(tmp_path / "m.gguf", "llama", gguf_models._keys("llama", shape), stored | tensors)


def mutate(raw: bytes, header: int, rng: random.Random) -> bytes:
    """Cut, flipped in the header, in the data or both, stuffed, or with counts that are too large."""
    data = bytearray(raw)
    match rng.randrange(7):
        case 0:
            return bytes(data[: rng.randrange(len(data))])
        case 1 | 2:
            for _ in range(rng.choice((1, 3, 30))):
                data[rng.randrange(header)] ^= 1 << rng.randrange(8)
        case 3:
            for _ in range(rng.choice((1, 30))):
                data[rng.randrange(header, len(data))] ^= 1 << rng.randrange(8)
        case 4:
            at = rng.randrange(4, header - 8)
            data[at : at + 8] = rng.choice((b"\xff" * 8, b"\0" * 8, (2**40).to_bytes(8, "little")))
        case 5:
            at = rng.randrange(header)
            data[at:at] = rng.randbytes(rng.choice((1, 8, 32)))
        case 6:
            for place in (rng.randrange(header), rng.randrange(header, len(data))):
                data[place] = rng.randrange(256)
    return bytes(data)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, int]:
    """A small file, and where its tensors begin."""
    from winnow.models.gguf.header import read_header

    tiny = Shape(32, 2, 1, 16, 32)
    types = (T.Q4_0, T.Q8_0, T.F16)
    path = tmp_path_factory.mktemp("whole") / "m.gguf"
    write_model(path, "llama", lambda name: types[len(name) % 3], shape=tiny)
    return path.read_bytes(), min(info.offset for info in read_header(path).tensors.values())


@pytest.mark.parametrize("part", marked(PARTS, PARTS[: len(PARTS) // 2]))
def test_a_damaged_file_is_one_line(part: int, whole: tuple[bytes, int], tmp_path: Path, home: Path) -> None:
    lines = 0
    for seed in range(part, part + 50):
        path = tmp_path / f"{seed}.gguf"
        path.write_bytes(mutate(*whole, random.Random(seed)))
        try:
            LLM(path, device="cpu").generate([[5, 6, 7]], SamplingParams(max_tokens=2))
        except WinnowError as error:
            said = str(error)
            lines += 1
        except BaseException as error:
            raise AssertionError(f"seed {seed}") from error
        else:
            said = ""
        assert "\n" not in said, seed
        assert len(said) < 1000, seed
        assert not list(home.glob("gguf/.*")), seed
    assert lines >= 20


def test_the_command_ends_with_one_line_in_bounded_memory(whole: tuple[bytes, int], tmp_path: Path, home: Path) -> None:
    raw, commands = whole[0], []
    for how, damaged in (("cut", raw[: len(raw) // 2]), ("counts", raw[:8] + b"\xff" * 7 + b"\x7f" + raw[16:])):
        path = tmp_path / f"{how}.gguf"
        path.write_bytes(damaged)
        commands.append(["run", "hi", "--model", str(path), "--max-tokens", "2"])
    for done in run_commands(commands):
        assert (done.code, done.out) == (2, ""), done.err
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1
    assert not list(home.glob("gguf/*"))


def test_the_widest_shape_is_used() -> None:
    assert {shape_for(type) for type in PACKABLE} == {SMALL, WIDE}
