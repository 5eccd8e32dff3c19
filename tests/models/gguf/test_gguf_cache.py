"""Converted GGUF files: kept once, made again where damaged or outdated, and never half written."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as T
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from covering import covered
from forked import run
from gguf_files import TOKENS
from gguf_models import write_model
from models import stock_logits
from winnow import LLM
from winnow.errors import InputError, ModelError
from winnow.models import files
from winnow.models.gguf import cache, directory, load
from winnow.models.gguf.load import import_gguf

IDS = list(range(2, 30))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WINNOW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path: Path, home: Path) -> Path:
    return write_model(tmp_path / "m.gguf", "llama", lambda name: T.Q4_1).path


@pytest.fixture
def entry(file: Path) -> Path:
    """The cached copy of `file`, just made."""
    model_of(file)
    [found] = cache.entries()
    assert found.name == "m.gguf"
    return found.path


def model_of(path: Path) -> PreTrainedModel:
    return LLM(path, device="cpu", dtype="float32").model


def logits(path: Path) -> torch.Tensor:
    return stock_logits(model_of(path), IDS)


def test_a_folder_that_cannot_be_searched_is_one_that_cannot_be_written(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As the home of root is for another user."""
    expected, status = logits(file), os.stat

    def refused(path: object, *given: object, **options: object) -> os.stat_result:
        if "/locked/" in str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return status(path, *given, **options)  # type: ignore[arg-type]

    def closed(*given: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setenv("WINNOW_CACHE", "/locked/cache")
    monkeypatch.setattr(os, "stat", refused)
    monkeypatch.setattr(load, "import_gguf", closed)
    assert torch.equal(logits(file), expected)
    [line] = warnings_in(caplog)
    assert "m.gguf cannot be kept converted (/locked/cache/gguf: Permission denied)" in line


def test_no_home_is_one_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("WINNOW_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    with pytest.raises(InputError, match=r"Could not determine home directory.*; set WINNOW_CACHE"):
        model_of(file)


def no_conversion(*arguments: object) -> None:
    raise AssertionError("converted once more")


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("winnow")]


def test_the_second_load_does_not_convert(file: Path, entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "tensors_of", no_conversion)
    first = logits(file)
    moved = file.with_name("another-name.gguf")
    file.rename(moved)
    assert torch.equal(logits(moved), first)
    assert len(cache.entries()) == 1
    with pytest.raises(ModelError, match="no retaining heads for another-name with"):
        LLM(moved, dtype=torch.float32, device="cpu").decoder.heads(None)


FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "packed.json")


@covered(name=[*FILES, "model-00000.safetensors"], how=["cut", "flipped", "gone", "empty"])
def test_a_damaged_entry_is_made_again(
    name: str, how: str, file: Path, entry: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = logits(file)
    damaged = entry / name
    raw = damaged.read_bytes()
    match how:
        case "gone":
            damaged.unlink()
        case "flipped":  # where a header or a brace is
            damaged.write_bytes(bytes(byte ^ 0x55 for byte in raw[:24]) + raw[24:])
        case _:
            damaged.write_bytes(raw[: len(raw) // 2 if how == "cut" else 0])
    caplog.clear()
    assert torch.equal(logits(file), wanted)
    [said] = warnings_in(caplog)
    assert "m.gguf is damaged and is made again" in said
    assert "\n" not in said
    assert damaged.read_bytes()[:24] == raw[:24]
    caplog.clear()
    model_of(file)
    assert not warnings_in(caplog)


@pytest.mark.parametrize(
    "record",
    [
        "[]",
        "{",
        "5",
        '{"format": 1}',
        '{"format": 1, "files": {}, "tensors": {}}',
        '{"format": 1, "files": [], "tensors": 7}',
    ],
)
def test_a_broken_record_is_made_again(record: str, file: Path, entry: Path, caplog: pytest.LogCaptureFixture) -> None:
    wanted = logits(file)
    (entry / "packed.json").write_text(record)
    caplog.clear()
    assert torch.equal(logits(file), wanted)
    assert len(warnings_in(caplog)) == 1


@pytest.mark.parametrize(
    ("key", "value"), [("columns", 64), ("columns", 0), ("columns", "96"), ("kind", 7), ("kind", 2), ("minima", False)]
)
def test_a_record_that_contradicts_its_tensors_is_made_again(
    key: str, value: object, file: Path, entry: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = logits(file)
    record = json.loads((entry / "packed.json").read_text())
    record["tensors"]["model.layers.0.mlp.up_proj.weight"][key] = value
    (entry / "packed.json").write_text(json.dumps(record))
    caplog.clear()
    assert torch.equal(logits(file), wanted)
    assert len(warnings_in(caplog)) == 1


def test_a_tensor_that_the_record_drops_is_made_again(
    file: Path, entry: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without its weights a layer would compute with whatever memory held."""
    wanted = logits(file)
    record = json.loads((entry / "packed.json").read_text())
    del record["tensors"]["model.norm.weight"]
    (entry / "packed.json").write_text(json.dumps(record))
    caplog.clear()
    assert torch.equal(logits(file), wanted)
    assert len(warnings_in(caplog)) == 1


def test_a_file_that_changed_is_converted_anew(file: Path, entry: Path) -> None:
    before, status = logits(file), file.stat()
    raw = bytearray(file.read_bytes())
    raw[-5] ^= 0x11  # a code of the last tensor
    file.write_bytes(raw)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert not torch.equal(logits(file), before)
    assert len(cache.entries()) == 2


def test_another_format_is_converted_anew(file: Path, entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = (directory.FORMAT, directory.FORMAT + 1)
    for module in (cache, directory):
        monkeypatch.setattr(module, "FORMAT", known[1])
    model_of(file)
    assert {path.name[-2:] for path in (cache.cache_home() / "gguf").iterdir()} == {f"-{version}" for version in known}
    assert sorted(each.name for each in cache.entries()) == ["damaged or unfinished", "m.gguf"]


def test_two_processes_at_once(file: Path, home: Path) -> None:
    code = f"from winnow import LLM; print(LLM({str(file)!r}, device='cpu').logits([5, 6]).sum())"
    both = run([["-c", code]] * 2)
    assert [each.code for each in both] == [0, 0], both
    assert both[0].out == both[1].out != ""
    assert len(list((home / "gguf").iterdir())) == len(cache.entries()) == 1
    assert len(list((home / "paths").iterdir())) == 1


def test_the_slower_of_two_takes_the_faster_ones_work(file: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process finishes the same entry while this one writes its own."""
    write = load.write_directory

    def beaten(place: Path, *arguments: object) -> None:
        write(place, *arguments)
        arguments = (*arguments[:3], load.tensors_of(load.read_header(file), arguments[0]), arguments[4])
        write(place, *arguments)

    monkeypatch.setattr(load, "write_directory", beaten)
    model_of(file)
    assert len(list((home / "gguf").iterdir())) == len(cache.entries()) == 1


def test_a_full_disk(file: Path, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    wanted = logits(file)
    shutil.rmtree(home)

    def full(*arguments: object, **settings: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def of_a_library(*arguments: object, **settings: object) -> None:
        raise Exception("No space left on device (os error 28)")

    for where, name, fails in (
        (files, "save_file", full),
        (files, "save_file", of_a_library),
        (directory.os, "rename", full),
        (directory.tempfile, "mkdtemp", full),
        (PreTrainedTokenizerBase, "save_pretrained", of_a_library),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, fails)
            caplog.clear()
            assert torch.equal(logits(file), wanted)
        [said] = warnings_in(caplog)
        assert "No space left on device" in said
        assert "converts it" in said
        assert not list((home / "gguf").iterdir())


@pytest.mark.parametrize("failed", ["open", "mmap"])
def test_a_copy_that_cannot_be_read_just_now_is_left_as_it_is(
    file: Path, entry: Path, monkeypatch: pytest.MonkeyPatch, failed: str
) -> None:
    """As where a process has too many files open: the copy is as good as it was."""
    wanted, before = logits(file), sorted(path.name for path in entry.iterdir())
    errors = {
        "open": RuntimeError("unable to open file <m.safetensors> in read-only mode: Too many open files (24)"),
        "mmap": RuntimeError("unable to mmap 4096 bytes from file <m.safetensors>: Cannot allocate memory (12)"),
    }

    def barred(*arguments: object, **settings: object) -> None:
        raise errors[failed]

    with monkeypatch.context() as patch:
        patch.setattr(directory, "safe_open", barred)
        patch.setattr(load, "tensors_of", no_conversion)
        with pytest.raises(ModelError, match=r"m\.gguf cannot be read .*(open files|memory)\); try again, or set"):
            logits(file)
    assert sorted(path.name for path in entry.iterdir()) == before
    assert torch.equal(logits(file), wanted)


def test_a_cache_that_cannot_be_a_folder(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = logits(file)
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("WINNOW_CACHE", str(tmp_path / "a file" / "cache"))
    caplog.clear()
    assert torch.equal(logits(file), wanted)
    assert len(warnings_in(caplog)) == 1
    assert cache.entries() == []
    assert cache.clear() == 0


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WINNOW_CACHE", str(tmp_path / "own"))
    assert cache.cache_home() == tmp_path / "own"
    monkeypatch.delenv("WINNOW_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_home() == tmp_path / "xdg" / "winnow"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_home() == tmp_path / ".cache" / "winnow"


def test_entries_and_clear(file: Path, entry: Path, tmp_path: Path, home: Path) -> None:
    write_model(tmp_path / "a.gguf", "qwen3", lambda name: T.Q8_0)
    model_of(tmp_path / "a.gguf")
    found = cache.entries()
    assert [each.name for each in found] == ["a.gguf", "m.gguf"]
    assert [each.bytes for each in found] == [sum(f.stat().st_size for f in each.path.iterdir()) for each in found]
    assert cache.clear() == sum(each.bytes for each in found)
    assert cache.entries() == []
    assert not any(home.rglob("*"))
    assert cache.clear() == 0


def test_an_imported_directory_is_the_file(file: Path, tmp_path: Path) -> None:
    import_gguf(file, tmp_path / "imported")
    assert torch.equal(logits(tmp_path / "imported"), logits(file))
    llm, own = LLM(tmp_path / "imported", device="cpu"), LLM(file, device="cpu")
    assert llm.tokenizer.encode("the 123") == own.tokenizer.encode("the 123")
    assert llm.model.generation_config.eos_token_id == own.model.generation_config.eos_token_id
    assert len(llm.tokenizer) == len(TOKENS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "imported", "m.gguf"]


def test_importing_destroys_nothing(file: Path, tmp_path: Path) -> None:
    place = tmp_path / "mine"
    place.mkdir()
    (place / "thesis.txt").write_text("years of work")
    with pytest.raises(OSError, match="mine"):
        import_gguf(file, place)
    assert [path.name for path in place.iterdir()] == ["thesis.txt"]
    shutil.rmtree(place)
    place.write_text("a file")
    with pytest.raises(OSError, match="mine"):
        import_gguf(file, place)
    assert place.read_text() == "a file"
    assert not list(tmp_path.glob(".*"))


def test_what_is_no_file_is_not_hashed(home: Path, tmp_path: Path) -> None:
    (tmp_path / "endless.gguf").symlink_to("/dev/zero")
    (tmp_path / "folder.gguf").mkdir()
    os.mkfifo(tmp_path / "pipe.gguf")
    for name in ("endless", "folder", "pipe", "missing"):
        with pytest.raises(ModelError, match=f"{name}.gguf: "):
            model_of(tmp_path / f"{name}.gguf")
    assert not home.exists()
