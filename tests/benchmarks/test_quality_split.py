"""Validation and test share nothing: no text, record, passage, wording, key or seed."""

import gzip
import json
import re

import pytest
from benchmarks.quality.split import HAYSTACK, PASSAGES, QUESTIONS, SPLITS, write_split
from benchmarks.quality.tasks import DATA, RULER, split_cases, split_seed, split_tasks
from benchmarks.texts import SOURCES, texts

from quality_data import save_data
from winnow import LLM
from winnow.errors import InputError


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """The directory of each split."""
    folder = tmp_path_factory.mktemp("quality")
    save_data(folder / "data")
    for split in SPLITS:
        write_split(folder / "data", split, folder / split)
    return [folder / split for split in SPLITS]


def lines(folder, name):
    with gzip.open(next(folder.rglob(name)), "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("name", [name for name, _ in SOURCES.values()])
def test_no_sentence_of_a_document_is_in_both(name, halves, tmp_path):
    field = dict(SOURCES.values())[name]
    said = [{s for r in lines(half, name) for s in re.split(r"\n+", r[field]) if s} for half in halves]
    assert said[0]
    assert said[1]
    assert not said[0] & said[1]


@pytest.mark.parametrize(
    "name", ["hotpotqa_100.jsonl.gz", "covid_qa.jsonl.gz", "banking77_train.jsonl.gz", "banking77_test.jsonl.gz"]
)
def test_no_record_is_in_both_and_none_is_lost(name, halves):
    found = [{json.dumps(record) for record in lines(half, name)} for half in halves]
    assert found[0]
    assert found[1]
    assert not found[0] & found[1]
    whole = {json.dumps(record) for record in lines(halves[0].parent / "data", name)}
    assert found[0] | found[1] == whole


def test_passages_of_a_page_stay_together_and_questions_with_their_passage(halves):
    titles, ids = [], []
    for half in halves:
        passages, questions = lines(half, PASSAGES), lines(half, QUESTIONS)
        titles.append({each["title"] for each in passages})
        ids.append({each["id"] for each in passages})
        assert questions
        for question in questions:
            assert {question["gold_passage_id"], *question["distractor_ids"]} <= ids[-1]
    assert not titles[0] & titles[1]
    assert not ids[0] & ids[1]


def test_what_is_asked_is_never_the_same(halves):
    llm = LLM("needle")
    asked = []
    for split, half in zip(SPLITS, halves, strict=True):
        tasks = split_tasks((*RULER, *DATA), half, split)
        found = list(split_cases(llm, tasks, [1024], 3, 0, split))
        assert {case.task for case in found} == {*RULER, *DATA}
        asked.append({case.example.question for case in found} | {case.example.context[:200] for case in found})
    assert not asked[0] & asked[1]
    assert not {split_seed(s, "validation") for s in range(50)} & {split_seed(s, "test") for s in range(50)}


def test_needles_are_hidden_in_books_and_essays_of_the_split(halves):
    for half in halves:
        assert {path.name for path in (half / HAYSTACK).iterdir()} == {"books.jsonl.gz", "essays.jsonl.gz"}
        assert {text.domain for text in texts(half)} == set(SOURCES)


def test_a_directory_without_data_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds none of the files"):
        write_split(tmp_path, "test", tmp_path / "out")
    with gzip.open(tmp_path / SOURCES["shakespeare"][0], "wt", encoding="utf-8") as file:
        file.write(json.dumps({"id": "one", "text": "A single paragraph."}) + "\n")
    with pytest.raises(InputError, match="cannot be cut in two"):
        write_split(tmp_path, "test", tmp_path / "out")


def test_what_the_toy_was_taught_is_asked_over_the_splits_own_texts(halves):
    llm, texts = LLM("needle"), []
    for split, half in zip(SPLITS, halves, strict=True):
        found = split_cases(llm, split_tasks(["passkey", "multi_needle"], half, split), [512], 2, 0, split)
        texts.append(
            {sentence for case in found for sentence in re.findall(r"In [a-z]+ \d, [^.]+\.", case.example.context)}
        )
    assert texts[0]
    assert texts[1]
    assert not texts[0] & texts[1]


def test_only_the_tasks_of_the_protocol_and_its_lengths(halves):
    with pytest.raises(InputError, match="'gsm8k' is no task of the protocol"):
        split_tasks(["gsm8k"], halves[0], "test")
    with pytest.raises(InputError, match="256 tokens"):
        split_cases(LLM("needle"), [], [256], 1, 0, "test")
