"""Tables: what stands in a cell, and that the words of the headings are explained as the glossary explains them."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from winnow.cli import compare_view, evaluate_harness, evaluate_view, tune_view
from winnow.cli.tables import Column, facts, table_of
from winnow.cli.terminal import console
from winnow.cli.words import WORDS, explained

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
EVERYWHERE = ("plan", "prompt")  # words that no table could do without
TABLES = {
    "compare": ([*compare_view.COSTS, *compare_view.FIDELITY], ""),
    "peers": (compare_view.PEER_COSTS, compare_view.PEER_NOTE),
    "eval tasks": ([*evaluate_view.ACCURACY, evaluate_view.LOOPS], evaluate_view.ACCURACY_NOTE),
    "eval text": (evaluate_view.FIDELITY, ""),
    "eval harness": ([*evaluate_harness.SCORES, *evaluate_harness.COSTS], ""),
    "tune": ([*tune_view.MEASURED, *tune_view.COUNTED], ""),
}


def meanings() -> dict[str, str]:
    """Word -> meaning; several words that share a line have the same."""
    found: dict[str, str] = {}
    for words, meaning in re.findall(r"^\| (.+?) \| (.+) \|$", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE):
        for word in re.sub(r" \(.*?\)", "", words).split(", "):
            found.setdefault(word, meaning)
    return found


@pytest.mark.parametrize("word", WORDS)
def test_a_word_means_what_the_glossary_says(word):
    assert meanings()[word].startswith(WORDS[word])


@pytest.mark.parametrize("name", TABLES)
def test_the_words_in_headings_are_explained(name):
    columns, note = TABLES[name]
    headings = [column.heading for column in columns]
    said = explained(headings, note)
    read = " ".join(" ".join(heading.split()) for heading in headings)
    known = [word for word in meanings() if re.search(rf"(?<!\w){re.escape(word)}s?(?!\w)", read)]
    assert known
    assert [word for word in known if f"{word}: " not in said and word not in EVERYWHERE] == []


def test_a_word_is_explained_once_and_the_note_goes_first():
    said = explained(["units\nread\n%", "unit", "memory\nMiB"], "memory: of the process")
    assert said == f"memory: of the process; unit: {WORDS['unit']}"
    assert explained(["breadth", "rowing"]) == ""


@dataclass
class Some:
    name: str
    value: float | None
    ratios: dict[str, float] = field(default_factory=dict)


def test_cells_and_what_stands_below_them(capsys):
    columns = [Column("TTFT\ns", lambda row: row.value, ".2f", "ttft"), Column("n", lambda row: len(row.name))]
    rows = [Some("one", 1.0), Some("other", 0.5, {"ttft": 0.5}), Some("none", None)]
    console().print(table_of(rows, {"plan": lambda row: row.name}, columns, ratios=lambda row: row.ratios))
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in shown if line and line[0] in ("one", "other", "none")] == [
        ["one", "1.00", "3"],
        ["other", "0.50", "5"],
        ["none", "-", "4"],
    ]
    assert ["0.50x"] in shown
    assert " ".join(shown[-1]) == f"TTFT: {WORDS['TTFT']}; x: {WORDS['x']}"
    assert (columns[0].label, columns[0].said(rows[1])) == ("TTFT, s", "TTFT 0.50 s")


def test_the_words_of_facts_are_explained(capsys):
    console().print(facts("some plan", {"loss": "0.5 nats", "steps": "3"}))
    assert capsys.readouterr().out.splitlines()[-1] == f"nats: {WORDS['nats']}"
