"""LongBench, arXiv:2308.14508: 21 datasets of long prompts, with the prompts, answer lengths and scores published."""

import difflib
import re
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from winnow.errors import MissingExtraError
from winnow.tasks.benchmarks.chinese import segmented, zh_words
from winnow.tasks.benchmarks.question import Benchmark, Dataset, Question, published
from winnow.tasks.metrics import lcs_indices, qa_f1, token_f1
from winnow.tasks.rows import read_rows

FEW_SHOT = ("trec", "triviaqa", "samsum", "lsht")  # only the first line of an answer counts
PLAIN = (*FEW_SHOT, "lcc", "repobench-p")  # never put into a chat template
_NUMBER = re.compile(r"\d+")


def load(path: Path, name: str, dataset: Dataset) -> list[Question]:
    """The questions of one file: fields input, context, answers, all_classes.

    Raises:
        InputError: a malformed line. MissingExtraError: the dataset is Chinese and jieba is not installed.
    """
    if dataset.metric.endswith("_zh") and find_spec("jieba") is None:
        raise MissingExtraError(f"{name} is scored over Chinese words; install jieba, or leave it out with --task")
    found: list[Question] = []
    for row in read_rows(path):
        asked, context, answers = row.text("input"), row.text("context"), row["answers"]
        if not isinstance(answers, list) or not answers or not all(isinstance(each, str) for each in answers):
            raise row.error(f"'answers' must be a list of texts, not {answers!r:.60}")
        classes = row["all_classes"] or []
        if not isinstance(classes, list) or not all(isinstance(each, str) for each in classes):
            raise row.error(f"'all_classes' must be a list of texts, not {classes!r:.60}")
        if dataset.metric == "retrieval" and not all(_NUMBER.search(each) for each in answers):
            raise row.error(f"no paragraph number in the answer {answers!r:.60}")
        prompt = dataset.prompt.format(context=context, input=asked)
        score = partial(_score, name, _metric(dataset.metric, classes), tuple(answers))
        found.append(Question(name, prompt, asked, tuple(answers), dataset.max_tokens, name not in PLAIN, score))
    return found


def rouge(text: str, reference: str) -> float:
    """ROUGE-L as the package `rouge` has it: over different words, a union of subsequences sentence by sentence.

    A sentence ends at each full stop. Of a reference sentence the words count that stand in its longest common
    subsequence with any sentence of the text; every word counts once.
    """
    found, wanted = _sentences(text), _sentences(reference)
    if not found or not wanted:
        return 0.0
    shared = {target[i] for target in wanted for sentence in found for i in lcs_indices(target, sentence)}
    precision = len(shared) / len({word for sentence in found for word in sentence})
    recall = len(shared) / len({word for sentence in wanted for word in sentence})
    return 2 * precision * recall / (precision + recall + 1e-8)


def classification(classes: Sequence[str], text: str, reference: str) -> float:
    """1 over the number of class names in the text, if the right one is among them."""
    named = [each for each in classes if each in text]
    for each in named:  # a published quirk that scores depend on: the list shrinks while it is walked
        if each in reference and each != reference:
            named.remove(each)
    return 1 / len(named) if reference in named else 0.0


def share_of_numbers(text: str, reference: str) -> float:
    """Share of the numbers in the text that are the (first) number of the reference: passage count and retrieval."""
    numbers, wanted = _NUMBER.findall(text), _NUMBER.search(reference)
    return numbers.count(wanted[0]) / len(numbers) if numbers and wanted else 0.0


def code_similarity(text: str, reference: str) -> float:
    """Similarity of the first line that is no comment or mark-up with the reference, in whole per cent.

    Source: the ratio of fuzzywuzzy over Python's difflib.
    """
    lines = (line for line in text.lstrip("\n").split("\n") if not any(mark in line for mark in ("`", "#", "//")))
    return round(100 * difflib.SequenceMatcher(None, next(lines, ""), reference).ratio()) / 100


def _metric(name: str, classes: Sequence[str]) -> Callable[[str, str], float]:
    metrics: dict[str, Callable[[str, str], float]] = {
        "qa_f1": qa_f1,
        "qa_f1_zh": lambda text, reference: token_f1(zh_words(text), zh_words(reference)),
        "rouge": rouge,
        "rouge_zh": lambda text, reference: rouge(segmented(text), segmented(reference)),
        "classification": partial(classification, classes),
        "retrieval": share_of_numbers,
        "count": share_of_numbers,
        "code_similarity": code_similarity,
    }
    return metrics[name]


def _score(name: str, metric: Callable[[str, str], float], references: tuple[str, ...], text: str) -> float:
    if name in FEW_SHOT:
        text = text.lstrip("\n").split("\n")[0]
    return max(metric(text, reference) for reference in references)


def _sentences(text: str) -> list[list[str]]:
    return [" ".join(piece.split()).split(" ") for piece in text.split(".") if piece]


LONGBENCH = Benchmark("longbench", published("longbench"), load)
