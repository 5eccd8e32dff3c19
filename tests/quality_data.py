"""A small directory of data with every file that the protocol splits."""

import gzip
import json
from pathlib import Path
from typing import Any

from benchmarks.texts import SOURCES

from winnow.tasks.words import ADJECTIVES, NOUNS

SINGLE, REVISED = "shakespeare", "peps"  # the domain with one document, and that with two versions of one


def save_data(folder: Path, sentences: int = 240) -> Path:
    """Two documents of each domain, of so many sentences, and a few records of each data set.

    No two documents are alike, but that `REVISED` has a third one, a version of its second.
    """
    for domain, (name, field) in SOURCES.items():
        count = 1 if domain == SINGLE else 2
        documents = [{"id": f"{domain}-{i}", field: prose(f"{domain} {i}", sentences)} for i in range(count)]
        if domain == REVISED:
            documents.append({"id": "revised", field: f"{documents[1][field]}\n\nThis is new."})
        _write(folder / name, documents)
    for name, records in _records().items():
        _write(folder / name, records)
    return folder


def prose(of: str, sentences: int) -> str:
    """So many sentences in paragraphs of four; the words of each tell where it is from."""
    said = [
        f"In {of}, sentence {i}, the {ADJECTIVES[i % len(ADJECTIVES)]} man saw the {NOUNS[i % len(NOUNS)]}."
        for i in range(sentences)
    ]
    return "\n\n".join(" ".join(said[start : start + 4]) for start in range(0, sentences, 4))


def _records() -> dict[str, list[dict[str, Any]]]:
    passages = [
        {"id": i, "title": f"Page {i // 2}", "text": f"Fact {i} of page {i // 2} is {i * i}."} for i in range(200)
    ]
    questions = [
        {
            "question": f"what is fact {i}",
            "answers": [str(i * i)],
            "gold_passage_id": i,
            "distractor_ids": [j % 200 for j in range(i + 3, i + 11)],
        }
        for i in range(40)
    ]
    hotpot = [
        {
            "question": f"who met {i}",
            "answer": f"Person {i}",
            "supporting_facts": [[f"First {i}", 0], [f"Second {i}", 0]],
            "documents": [
                {"title": f"{name} {i}", "text": f"About {name} {i}. " * 4} for name in ("First", "Third", "Second")
            ],
        }
        for i in range(60)
    ]
    covid = [
        {
            "document": prose(f"article {i}", 40) + f" The dose was {500 + i} mg.",
            "questions": [{"question": f"Which dose in {i}?", "answers": [f"{500 + i} mg"]}],
        }
        for i in range(6)
    ]
    labels = [f"{noun}_lost" for noun in NOUNS[:12]]
    train = [{"text": f"My {label} {i}", "label": label} for label in labels for i in range(40)]
    asked = [{"text": f"Where is my {label}, asks {i}?", "label": label} for label in labels for i in range(2)]
    return {
        "passages.jsonl.gz": passages,
        "nq_questions.jsonl.gz": questions,
        "hotpotqa_100.jsonl.gz": hotpot,
        "covid_qa.jsonl.gz": covid,
        "banking77_train.jsonl.gz": train,
        "banking77_test.jsonl.gz": asked,
    }


def _write(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(record) + "\n" for record in records)
