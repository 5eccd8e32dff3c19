"""Tasks on the user's files, here tiny ones made by the test."""

import gzip
import json
import lzma
import random

import pytest

from winnow.errors import InputError
from winnow.tasks import render, task

PAIRS = [[f"key-{i}", f"value-{i}"] for i in range(10)]
KV = {"ordered_kv_records": PAIRS, "key": "key-3", "value": "value-3"}
LINES = "".join(f"line old-cat{i}: REGISTER_CONTENT is <{100 + i}>\n" for i in range(40))


def write(path, *records):
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(record if isinstance(record, str) else json.dumps(record) + "\n" for record in records)
    return path.parent


def example_of(chosen, tokenizer, tokens=400, depth=0.5):
    return chosen.example(random.Random(0), tokens=tokens, tokenizer=tokenizer, depth=depth)


@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_kv_retrieval_moves_the_asked_pair(depth, tmp_path, tokenizer):
    chosen = task("kv_retrieval", data=write(tmp_path / "kv_10.jsonl.gz", KV))
    example = example_of(chosen, tokenizer, 120, depth)
    keys = list(json.loads(example.context))
    assert set(keys) < {key for key, _ in PAIRS}
    assert keys.index("key-3") == round(depth * (len(keys) - 1))
    assert example.answers == ("value-3",)
    assert chosen.score(example, '"key-3": "value-3"') == 1
    assert chosen.score(example, '"key-3": "value-30"') == 0


def test_kv_retrieval_adds_random_pairs_when_the_record_is_short(tmp_path, tokenizer):
    example = example_of(task("kv_retrieval", data=write(tmp_path / "kv_10.jsonl.gz", KV)), tokenizer, 2000)
    pairs = json.loads(example.context)
    assert len(pairs) > 20
    assert {key: pairs[key] for key, _ in PAIRS} == dict(PAIRS)
    assert 1900 < len(render(example, tokenizer)) <= 2000


@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_line_retrieval_moves_the_asked_line(depth, tmp_path, tokenizer):
    data = write(tmp_path / "lines_40.jsonl.gz", {"prompt": f"Remember.\n\n{LINES}\nNow"})
    chosen = task("line_retrieval", data=data)
    example = example_of(chosen, tokenizer, 500, depth)
    lines = [line for line in example.context.splitlines() if line.startswith("line ")]
    assert f"<{example.answers[0]}>" in lines[round(depth * (len(lines) - 1))]
    assert set(lines) < set(LINES.splitlines())
    assert chosen.score(example, example.reply) == 1


def test_line_retrieval_says_when_the_lines_run_out(tmp_path, tokenizer):
    chosen = task("line_retrieval", data=write(tmp_path / "lines_40.jsonl.gz", {"prompt": LINES}))
    with pytest.raises(InputError, match=r"has 40"):
        example_of(chosen, tokenizer, 4000)


def test_haystack_directory_takes_every_kind_of_file(tmp_path, tokenizer):
    write(tmp_path / "a.jsonl.gz", {"text": "Alpha beta. "})
    (tmp_path / "b.txt").write_text("Gamma delta.")
    (tmp_path / "c.txt.xz").write_bytes(lzma.compress(b"Epsilon zeta."))
    context = example_of(task("passkey", haystack=tmp_path), tokenizer).context
    assert all(sentence in context for sentence in ("Alpha beta.", "Gamma delta.", "Epsilon zeta."))


@pytest.mark.parametrize(
    ("name", "file", "records", "message"),
    [
        ("kv_retrieval", "kv_1.jsonl.gz", [KV, {"key": "a", "value": "b"}], r"line 2: no field 'ordered_kv_records'"),
        ("kv_retrieval", "kv_1.jsonl.gz", [KV | {"ordered_kv_records": [["a"]]}], r"line 1: .* \[key, value\]"),
        ("kv_retrieval", "kv_1.jsonl.gz", ["{\n"], r"line 1: not JSON"),
        ("kv_retrieval", "kv_1.jsonl.gz", ["[]\n"], r"line 1: expected a JSON object"),
        ("kv_retrieval", "other.jsonl.gz", [KV], r"no record in a file kv_\*"),
        ("line_retrieval", "lines_1.jsonl.gz", [{"prompt": "nothing"}], r"line 1: 'prompt' holds no lines"),
        ("line_retrieval", "lines_1.jsonl.gz", [{"text": "nothing"}], r"line 1: no field 'prompt'"),
    ],
)
def test_bad_files_are_named_with_the_line(name, file, records, message, tmp_path, tokenizer):
    with pytest.raises(InputError, match=message):
        example_of(task(name, data=write(tmp_path / file, *records)), tokenizer)


def test_missing_and_empty_directories_are_refused(tmp_path, tokenizer):
    for chosen in (task("kv_retrieval", data=tmp_path / "no"), task("line_retrieval", data=tmp_path / "no")):
        with pytest.raises(InputError, match="is not a directory"):
            example_of(chosen, tokenizer)
    with pytest.raises(InputError, match="holds no text"):
        example_of(task("number", haystack=tmp_path), tokenizer)


def test_a_damaged_gzip_file_is_an_input_error(tmp_path, tokenizer):
    (tmp_path / "kv_1.jsonl.gz").write_bytes(b"not gzip")
    with pytest.raises(InputError, match="cannot be read"):
        example_of(task("kv_retrieval", data=tmp_path), tokenizer)
