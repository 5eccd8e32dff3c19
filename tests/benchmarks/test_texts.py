"""Texts of a data directory, by domain."""

import gzip
import json

import pytest
from benchmarks.texts import texts
from benchmarks.windows import windows

from winnow.errors import InputError


def write(path, *records):
    path.parent.mkdir(exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def test_texts_come_by_domain(tmp_path):
    data = tmp_path / "data"
    meetings = [{"id": name, "document": f"Talk {name}."} for name in ("one", "two")]
    write(data / "babi.jsonl.gz")
    write(data / "longdoc_qa" / "qmsum_val.jsonl.gz", *meetings)
    assert [(text.domain, text.id) for text in texts(data)] == [("meetings", "one"), ("meetings", "two")]
    write(tmp_path / "books.jsonl.gz", {"id": 7, "text": "A book."})
    assert [(text.domain, text.id, text.text) for text in texts(tmp_path)] == [("books", "7", "A book.")]
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="holds no text"):
        texts(tmp_path / "none")


def test_windows_of_texts_take_a_tokenizer(tmp_path):
    with pytest.raises(InputError, match="the model has no tokenizer, so it cannot read text"):
        windows(tmp_path, None, 64, 1)
