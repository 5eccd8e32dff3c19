"""`import`, `cache` and `inspect-model` over a small GGUF file."""

import os
import subprocess
import sys

import pytest
import torch

import forked
from gguf_files import HEADS, HIDDEN, KV_HEADS, LAYERS, TOKENS, WIDTH, write_llama
from tiny import tiny_model
from winnow import LLM
from winnow.cli import terminal
from winnow.models.packed import quantize_model
from winnow.models.report import weights_report


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The user's cache folder."""
    monkeypatch.setenv("WINNOW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path):
    return write_llama(tmp_path / "small.gguf")


def test_an_imported_directory_is_the_model_of_the_file(winnow, file, folder, tmp_path):
    done = winnow("import", file, tmp_path / "made")
    assert done.code == 0
    assert str(tmp_path / "made") in done.out
    assert not (folder / "gguf").exists()
    ids = [5, 6, 7, 8]
    torch.testing.assert_close(LLM(tmp_path / "made").logits(ids), LLM(file).logits(ids), rtol=0, atol=0)


@pytest.mark.parametrize("part", ["speed", "duo"])
def test_a_file_is_trained_in_floats_and_used_as_it_is(winnow, file, tmp_path, part):
    """Packed weights have no gradients, and what is trained over floats fits them."""
    data, out = tmp_path / "data.jsonl", tmp_path / "out"
    data.write_text('{"prompt": "the cat the cat the", "answer": " cat"}\n' * 4, encoding="utf-8")
    asked = {"speed": ("--cutoff", 1, "--decode-from", "last:1"), "duo": ("--sink", 1, "--recent", 2)}[part]
    flags = ("--model", file, "--out", out, "--steps", 2, *asked)
    refused = winnow("train", part, data, *flags, "--weights", "packed")
    assert "packed weights have no gradients" in refused.err
    assert winnow("train", part, data, *flags).code == 0
    use = {"speed": ("--adapter", out), "duo": ("--plan", f"duo(gates='{out}', sink=1, recent=2)")}[part]
    used = winnow("run", "the", "--model", file, "--max-tokens", 1, *use)
    assert used.code == 0, used.err


def test_import_takes_an_empty_directory(winnow, file, tmp_path):
    (tmp_path / "made").mkdir()
    assert winnow("import", file, tmp_path / "made").code == 0
    assert (tmp_path / "made" / "packed.json").is_file()


def test_import_refuses_before_it_works(winnow, file, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:-100])
    for arguments, why in [
        ((file, tmp_path / "full"), "is not empty; give a new"),
        ((file, file), "no directory"),
        ((file, file / "below"), "cannot write"),
        ((tmp_path / "full", tmp_path / "made"), "not a .gguf file"),
        ((tmp_path / "none.gguf", tmp_path / "made"), "cannot be read"),
        ((cut, tmp_path / "made"), "the file at"),
    ]:
        done = winnow("import", *arguments)
        assert done.code == 2
        assert why in done.err, done.err
        assert done.err.count("\n") == 1
    left = {path.name for path in tmp_path.iterdir()} - {"cache"}
    assert left == {"cut.gguf", "full", "small.gguf"}
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]


def test_import_onto_a_full_disk_is_one_line_and_leaves_nothing(file, tmp_path):
    code = f"""
import resource, sys
from winnow.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
main(["import", {str(file)!r}, {str(tmp_path / "made" / "here")!r}])
"""
    [done] = forked.run([["-c", code]])
    assert done.code == 2
    assert done.err.startswith("error: cannot write")
    assert done.err.count("\n") == 1
    assert list((tmp_path / "made").iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_import_into_a_folder_that_cannot_be_written(winnow, file, tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    done = winnow("import", file, tmp_path / "closed" / "made")
    assert done.code == 2
    assert "cannot write" in done.err


def test_the_cache_lists_what_was_converted_and_forgets_it(winnow, file, folder):
    assert "no converted files" in winnow("cache", "list").out
    LLM(file)
    (found,) = winnow("cache", "list", "--json").json["entries"]
    entry = folder / found["path"]
    assert found["name"] == "small.gguf"
    assert found["bytes"] == sum(path.stat().st_size for path in entry.iterdir())
    shown = winnow("cache", "list").out
    assert found["path"] in shown
    assert "KiB" in shown
    done = winnow("cache", "clear")
    assert done.out == f"freed {terminal.size(found['bytes'])} in {folder}\n"
    assert not entry.exists()
    assert winnow("cache", "list", "--json").json["entries"] == []


def test_what_is_left_of_a_damaged_entry_is_listed_too(winnow, file, folder):
    LLM(file)
    (entry,) = (folder / "gguf").iterdir()
    (entry / "packed.json").write_text("{")
    (found,) = winnow("cache", "list", "--json").json["entries"]
    assert found["name"] == "damaged or unfinished"


def test_conversion_is_announced_once_where_it_takes_time(winnow, file, monkeypatch):
    monkeypatch.setattr(terminal, "NOTICED_S", 0.0)
    asked = ("run", "the", "--model", file, "--max-tokens", "1")
    assert winnow(*asked).err.count("converting small.gguf") == 1
    assert "converting" not in winnow(*asked).err


def test_short_conversions_and_library_users_see_nothing(file, monkeypatch, capsys):
    with terminal.converting("small.gguf") as meter:
        meter.advance(1, 2)
    monkeypatch.setattr(terminal, "NOTICED_S", 0.0)
    LLM(file)
    assert capsys.readouterr() == ("", "")


def test_progress_reaches_the_total(file):
    calls: list[tuple[int, int]] = []
    LLM(file, progress=lambda *call: calls.append(call))
    assert {total for _, total in calls} == {sum(values for values, _ in calls)}
    again: list[tuple[int, int]] = []
    LLM(file, progress=lambda *call: again.append(call))
    assert again == []


def test_inspect_model_counts_every_weight_once(winnow, file):
    found = winnow("inspect-model", "--model", file, "--json").json
    rows = {row["what"].split(",")[0]: row for row in found["weights"]["rows"] if row["bits"]}
    assert rows["embedding and head"]["type"] == "Q8_0"
    assert rows["embedding and head"]["tensors"] == 1
    assert rows["embedding and head"]["values"] == len(TOKENS) * HIDDEN
    assert rows["linear"]["type"] == "Q4_1"
    assert rows["linear"]["tensors"] == 6 * LAYERS
    # 20 bytes a block of Q4_1; where blocks do not pair, a row has 16 more.
    narrow = 2 * HIDDEN + HIDDEN // HEADS * KV_HEADS + 2 * WIDTH
    unpaired = LAYERS * (narrow * bool(HIDDEN % 64) + HIDDEN * bool(WIDTH % 64))
    assert rows["linear"]["bytes"] == rows["linear"]["values"] // 32 * 20 + 16 * unpaired
    (dense,) = (row for row in found["weights"]["rows"] if row["what"] == "linear, bfloat16")
    assert (dense["type"], dense["tensors"]) == ("F16", LAYERS)
    (norms,) = (row for row in found["weights"]["rows"] if row["what"].startswith("norms"))
    assert (norms["type"], norms["tensors"], norms["bytes"]) == ("F32", 2 * LAYERS + 1, 2 * HIDDEN * (2 * LAYERS + 1))
    assert found["weights"]["file_bytes"] == file.stat().st_size
    assert found["weights"]["bytes"] == sum(row["bytes"] for row in found["weights"]["rows"])
    assert found["weights"]["packed_bytes"] == sum(row["bytes"] for row in rows.values())
    assert found["end_tokens"] == [{"id": 1, "token": "</s>"}]
    assert found["unit_bytes"] == 2 * 2 * HIDDEN // HEADS
    assert found["bytes_per_1000_tokens"] == 1000 * LAYERS * KV_HEADS * found["unit_bytes"]
    assert not found["chat_template"]


def test_inspect_model_shows_the_same_for_the_imported_directory(winnow, file, tmp_path):
    winnow("import", file, tmp_path / "made")
    of_file, of_directory = (
        winnow("inspect-model", "--model", model, "--json").json["weights"] for model in (file, tmp_path / "made")
    )
    assert of_file == of_directory


def test_inspect_model_as_tables(winnow, file, tiny):
    shown = winnow("inspect-model", "--model", file).out
    for text in ("linear, 4 bit, groups of 32, minima", "Q4_1", "multiplied packed", "</s> (1)", "in the file"):
        assert text in shown
    dense = winnow("inspect-model", "--model", file, "--weights", "dense").out
    assert "bit, groups" not in dense
    assert "Q4_1" in dense
    assert "F32" in winnow("inspect-model", "--model", tiny).out


def test_run_says_how_weights_are_held(winnow, file):
    asked = ("run", "the", "--model", file, "--max-tokens", "1")
    assert "weights: " not in winnow(*asked).err
    line = winnow(*asked, "--stats").err.splitlines()[-1]
    assert line.startswith("weights: ")
    assert "packed 4 and 8 bit" in line


def test_the_report_of_a_loaded_model():
    model = tiny_model()
    report = weights_report(model)
    assert report.bytes == sum(parameter.nbytes for parameter in model.parameters())
    assert (report.packed_bytes, report.packed_bits, report.file_bytes) == (0, (), None)
    quantize_model(model)
    rounded = weights_report(model)
    assert rounded.packed_bits == (4, 8)
    assert sum(row.values for row in rounded.rows) == sum(row.values for row in report.rows)


def test_winnow_imports_gguf_only_for_gguf_files():
    code = "import sys, winnow; sys.exit('gguf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sizes():
    assert [terminal.size(count) for count in (0, 1023, 1024, 3 * 2**20, 5 * 2**40)] == [
        *("0 bytes", "1023 bytes", "1.0 KiB", "3.0 MiB", "5,120.0 GiB")
    ]
