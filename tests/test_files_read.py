"""Texts of the user's: bounded, UTF-8, and lines that end where JSON Lines end."""

import json
import os
import threading

import pytest

from winnow.errors import InputError
from winnow.reading import check_text, json_lines, read_text


def test_a_text_is_read_as_it_is(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("ä\r\n\n".encode())
    assert read_text(path) == "ä\r\n\n"
    assert read_text(path, limit=5) == "ä\r\n\n"


def test_no_more_than_the_limit_is_read(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"x" * 6)
    with pytest.raises(InputError, match="holds more than 5 bytes; cut it"):
        read_text(path, limit=5)
    with pytest.raises(InputError, match="/dev/zero holds more than 67,108,864 bytes"):
        read_text(type(path)("/dev/zero"))


def test_a_pipe_is_read(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("from a pipe",))
    writer.start()
    assert read_text(path) == "from a pipe"
    writer.join()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), "cannot read .*Is a directory"),
        (lambda path: path.symlink_to(path), "cannot read .*symbolic links"),
        (lambda path: path.write_bytes(b"ab\xff"), r"is not UTF-8 text \(byte 2\)"),
        (lambda path: None, "cannot read .*No such file"),
    ],
)
def test_what_cannot_be_read(tmp_path, make, message):
    make(tmp_path / "x")
    with pytest.raises(InputError, match=message):
        read_text(tmp_path / "x")


@pytest.mark.parametrize("letter", ["\u2028", "\x85", "\x0b", "\x1c"])
def test_lines_end_with_line_feeds_alone(tmp_path, letter):
    path = tmp_path / "x.jsonl"
    rows = [{"prompt": f"one{letter}more"}, {"prompt": "two"}]
    path.write_text("\r\n\n".join(json.dumps(row, ensure_ascii=letter == "\x0b") for row in rows), encoding="utf-8")
    if letter in "\x0b\x1c":  # JSON takes these only escaped
        path.write_text("\n\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert list(json_lines(path)) == [(f"{path}, line 1", rows[0]), (f"{path}, line 3", rows[1])]


@pytest.mark.parametrize("line", ["{", "[" * 100_000, "9" * 5000])
def test_a_line_that_is_no_json_is_named(tmp_path, line):
    path = tmp_path / "x.jsonl"
    path.write_text("{}\n" + line)
    with pytest.raises(InputError, match=r"x\.jsonl, line 2 is not JSON"):
        list(json_lines(path))


def test_half_a_character_is_no_text():
    check_text("👋 é", "the prompt")
    with pytest.raises(InputError, match=r"the prompt holds '\\ud83d' \(character 2\)"):
        check_text("ab\ud83d", "the prompt")


def test_the_mark_that_some_editors_begin_a_text_with_is_no_part_of_it(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("\ufeffone\ufeff".encode())
    assert read_text(path) == "one\ufeff"
