"""What lm_eval finds over HTTP beside what it finds in process: `python -m recipes.over_http --data DIR --out JSON`.

smollm2 is asked about local data, by lm_eval's own client of OpenAI's API (local-completions) and as a model of lm_eval
in this process: questions with two choices, answers to questions about a paragraph, whole texts. DIR holds
many_shot/bbh.jsonl.gz, multidoc_qa/squad_xquad_en.jsonl.gz and language_modeling/wikitext2_test.jsonl.gz.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import lm_eval
import torch
from benchmarks.record import about
from recipes.screens import served

from winnow import LLM
from winnow.evaluation.about import commit
from winnow.evaluation.harness import PlannedLM
from winnow.evaluation.harness_run import Loaded, load_tasks
from winnow.server.settings import Settings
from winnow.tasks.rows import read_rows

Document = dict[str, Any]
NAME, THREADS = "smollm2", 2
TOGETHER = 4  # requests at once
CHOICES = ("causal_judgement", "navigate", "sports_understanding")
YAMLS = {
    "choose": """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc}]
""",
    "answer": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: answer
generation_kwargs: {until: ["\\n"], max_gen_toks: 16, do_sample: false, temperature: 0.0}
metric_list: [{metric: exact_match, ignore_case: true, ignore_punctuation: true}]
""",
    "roll": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
""",
}


@dataclass(frozen=True)
class Compared:
    """A metric of a task, over so many documents; same: those of them to which the answer is the same, of likelihoods
    to the last digit."""

    task: str
    metric: str
    documents: int
    in_process: float
    over_http: float
    same: int


def choices(data: Path, count: int) -> Iterator[Document]:
    """Questions of BIG-Bench Hard that are answered Yes or No, as many of each kind."""
    for kind in CHOICES:
        rows = (row for row in read_rows(data / "many_shot" / "bbh.jsonl.gz") if row["task"] == kind)
        for row in islice(rows, count // len(CHOICES)):
            right = row["target"].strip().lower() == "yes"
            yield {"question": f"Q: {row['input']}\nA:", "choices": ["Yes", "No"], "answer": 0 if right else 1}


def answers(data: Path, count: int) -> Iterator[Document]:
    """Questions of SQuAD with their paragraphs, one of each."""
    for article in islice(read_rows(data / "multidoc_qa" / "squad_xquad_en.jsonl.gz"), count):
        paragraph = article["paragraphs"][0]
        asked = paragraph["qas"][0]
        yield {
            "question": f"{paragraph['text']}\n\nQuestion: {asked['question']}\nAnswer:",
            "answer": asked["answers"][0],
        }


def texts(data: Path, count: int) -> Iterator[Document]:
    """Passages of WikiText."""
    for row in islice(read_rows(data / "language_modeling" / "wikitext2_test.jsonl.gz"), count):
        yield {"text": row["text"][:6000]}


def written(data: Path, directory: Path, count: int) -> Loaded:
    """The tasks over these data, as lm_eval loads them."""
    documents = {"choose": choices(data, count), "answer": answers(data, count // 3), "roll": texts(data, count // 10)}
    for name, rows in documents.items():
        file = directory / f"{name}.jsonl"
        file.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
        source = {"data_files": {"test": str(file)}, "cache_dir": str(directory / "cache")}
        head = f"task: {name}\ndataset_path: json\ndataset_kwargs: {json.dumps(source)}\ntest_split: test\n"
        (directory / f"{name}.yaml").write_text(head + YAMLS[name].lstrip(), encoding="utf-8")
    return load_tasks(list(documents), include_path=directory)


def evaluated(tasks: Loaded, model: Any, **more: Any) -> tuple[Document, dict[tuple[str, int], Any]]:
    """lm_eval's results by task, and what it says of each document."""
    report = lm_eval.simple_evaluate(
        model=model, tasks=tasks.built, task_manager=tasks.manager, bootstrap_iters=0, **more
    )
    samples = {(task, each["doc_id"]): each for task, rows in report["samples"].items() for each in rows}
    return report["results"], samples


def given(sample: Document) -> str:
    """What was answered, with all digits: a text, or likelihoods."""
    return json.dumps(sample["filtered_resps"], default=float)


def compare(llm: LLM, tasks: Loaded) -> Iterator[Compared]:
    """Ask in process, then over HTTP, several at once."""
    expected, in_process = evaluated(tasks, PlannedLM(llm, "full"))
    os.environ.setdefault("OPENAI_API_KEY", "none")  # lm_eval's client insists on one
    with served(llm, NAME, Settings()) as (url, _):
        place = {"model": NAME, "base_url": f"{url}/v1/completions", "max_length": llm.decoder.shape.max_positions}
        asked = {**place, "num_concurrent": TOGETHER, "tokenizer_backend": "remote"}
        found, over_http = evaluated(tasks, "local-completions", model_args=asked)
    for task, metrics in expected.items():
        mine = [key for key in in_process if key[0] == task]
        same = sum(given(in_process[key]) == given(over_http[key]) for key in mine)
        for metric, value in metrics.items():
            name = metric.removesuffix(",none")
            if name != metric and isinstance(value, float) and "stderr" not in name:
                yield Compared(task, name, len(mine), float(value), float(found[task][metric]), same)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.over_http", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--count", type=int, default=150, help="questions; a third as many answers, a tenth as many texts"
    )
    parser.add_argument("--dtype", default="bfloat16")
    flags = parser.parse_args()
    torch.set_num_threads(THREADS)
    llm = LLM(NAME, dtype=flags.dtype, deterministic=True)
    with tempfile.TemporaryDirectory() as directory:
        rows = list(compare(llm, written(flags.data, Path(directory), flags.count)))
    command = f"python -m recipes.over_http --data DIR --dtype {flags.dtype} --count {flags.count} --out {flags.out}"
    told = {
        "command": command,
        "commit": commit(),
        **about(llm, NAME),
        "together": TOGETHER,
        "summary": [asdict(row) for row in rows],
    }
    flags.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
