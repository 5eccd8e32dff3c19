"""InfiniteBench, arXiv:2402.13718: 12 tasks of about 100,000 tokens and more, in its published files and scores.

Prompts and answer lengths are those it gives to open models (YaRN-Mistral); answers are scored by its `compute_scores`.
"""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from winnow.tasks.benchmarks.chinese import normalise_zh
from winnow.tasks.benchmarks.question import Benchmark, Dataset, Question, against, published
from winnow.tasks.metrics import best, lcs_indices, qa_f1, rouge_words, token_f1
from winnow.tasks.rows import read_rows

Labels = tuple[Any, ...]  # the right answers; of a choice its text and its letter
LETTERS = "ABCD"
_CALL = re.compile(r"(func_[0-9]+)\(-?[0-9]+\)")
_WANTED = re.compile(r"(The .+) of")
_NUMBER = re.compile(r"\d+\.\d+|\d+")
_MARKS = str.maketrans(dict.fromkeys("\n:\"'.,?!{}", " "))

NUMERIC = ("last_integer", "find_number", "values")  # metrics whose labels are numbers


def load(path: Path, name: str, dataset: Dataset) -> list[Question]:
    """The questions of one file: fields context, input, answer, options. Raises InputError for a malformed line."""
    found: list[Question] = []
    for row in read_rows(path):
        context, asked, answer = row.text("context"), row.text("input"), row["answer"]
        parts = {"context": context, "input": asked}
        labels: Labels = tuple(answer) if isinstance(answer, list) else (answer,)
        if "{A}" in dataset.prompt:
            options = row["options"]
            if not isinstance(options, list) or len(options) != 4 or not labels or labels[0] not in options:
                raise row.error("'options' must be four texts, one of them the answer")
            parts |= dict(zip(LETTERS, options, strict=True))
            labels = (labels[0], LETTERS[options.index(labels[0])])
        if "{func}" in dataset.prompt:
            if (call := _CALL.search(asked)) is None:
                raise row.error("'input' names no call such as func_1(2)")
            parts |= {"func": call[1], "func_call": call[0]}
        if "{prefix}" in dataset.prompt:
            if (wanted := _WANTED.search(asked)) is None:
                raise row.error("'input' asks for no number, as 'The largest number of the list' does")
            parts["prefix"] = f"What is {wanted[1].lower()} in the following list?"
        if not labels or labels == ([],):
            raise row.error("'answer' is empty")
        if dataset.metric in NUMERIC and not all(isinstance(each, int | float) for each in _flat(labels)):
            raise row.error(f"'answer' must be numbers, not {answer!r:.60}")
        score = against(METRICS[dataset.metric], labels)
        shown = tuple(str(label) for label in labels)
        found.append(Question(name, dataset.prompt.format(**parts), asked, shown, dataset.max_tokens, True, score))
    return found


def _flat(labels: Labels) -> list[Any]:
    return [each for label in labels for each in (label if isinstance(label, list) else [label])]


def first_number(text: str, labels: Labels) -> float:
    """1 if the first run of digits is the label: pass keys and number strings."""
    found = re.search(r"[0-9]+", text)
    return float(found is not None and found[0] == str(labels[0]))


def has_word(text: str, labels: Labels) -> float:
    """1 if the label is one of the words: key-value retrieval."""
    return float(str(labels[0]) in text.translate(_MARKS).split())


def character_name(text: str, labels: Labels) -> float:
    """1 if the label is one of the words in capitals: the speaker of a dialogue."""
    return float(labels[0] in text.translate(_MARKS).upper().split())


def last_integer(text: str, labels: Labels) -> float:
    """1 if the last word is the label as an integer: the value of a call."""
    words = re.sub("[\n.`'\":]", " ", text).split()
    try:
        return float(int(words[-1]) == labels[0]) if words else 0.0
    except ValueError:
        return 0.0


def find_number(text: str, labels: Labels) -> float:
    """1 if the first number equals the label.

    The published scorer fails on decimals where an integer is wanted; here they count as wrong.
    """
    found = _NUMBER.search(text)
    return float(found is not None and float(found[0]) == labels[0])


def values(text: str, labels: Labels) -> float:
    """Share of the label's values that the numbers of the text give from the start, up to the first wrong one."""
    wanted = labels[0] if isinstance(labels[0], list) else labels
    numbers = [int(number) for number in re.findall(r"[0-9]+", text)]
    right = 0
    for number, value in zip(numbers, wanted, strict=False):
        if number != value:
            break
        right += 1
    return right / len(wanted)


def debugged(text: str, labels: Labels) -> float:
    """1 if the text begins with the option's letter, or has letter or function after "answer is:" or the like."""
    text, (function, letter) = text.strip(), labels
    if text[:2] in (f"{letter}.", f"{letter}:"):
        return 1.0
    cleaned = _single_spaced(re.sub("[\n`'\"*-]|[Oo]ption", " ", text))
    for prefix in ("answer is:", "is:", "answer:", "correct option is:"):
        if (at := cleaned.find(prefix)) >= 0:
            return float(cleaned[at + len(prefix) + 1 :].startswith((letter, function)))
    return 0.0


def choice(text: str, labels: Labels) -> float:
    """1 for the right letter or text: at the start, after "answer is" or the like, or the first letter of all."""
    text = text.strip()
    if not text or text[0] in LETTERS:
        return float(text[:1] in labels)
    if text in labels:
        return 1.0
    cleaned = _single_spaced(re.sub("[\n\"'.,?!{}]", " ", text))
    for prefix in ("answer is:", "answer:", "answer is", "option is"):
        if (at := cleaned.find(prefix)) >= 0:
            return float(cleaned[at + len(prefix) + 1 :].startswith(tuple(labels)))
    return next((float(word in labels) for word in cleaned.split() if word in LETTERS), 0.0)


def rouge_l_sum(text: str, labels: Labels) -> float:
    """ROUGE-Lsum of the rouge-score package: lines are sentences, a word counts as often as both texts have it."""
    found = [rouge_words(line) for line in text.split("\n")]
    left = Counter(word for line in found for word in line)
    best = 0.0
    for reference in map(str, labels):
        best = max(best, _rouge_l_sum(found, left.copy(), [rouge_words(line) for line in reference.split("\n")]))
    return best


def _rouge_l_sum(found: list[list[str]], left: Counter[str], wanted: list[list[str]]) -> float:
    lengths = sum(map(len, found)), sum(map(len, wanted))
    due, hits = Counter(word for line in wanted for word in line), 0
    for target in wanted:
        for i in sorted({i for line in found for i in lcs_indices(target, line, up=True)}):
            word = target[i]
            if left[word] > 0 and due[word] > 0:
                hits, left[word], due[word] = hits + 1, left[word] - 1, due[word] - 1
    return 2 * hits / sum(lengths) if hits else 0.0


def _best_f1(text: str, labels: Labels) -> float:
    return best(qa_f1, text, map(str, labels))


def _best_f1_characters(text: str, labels: Labels) -> float:
    return max(token_f1(list(normalise_zh(text)), list(normalise_zh(str(label)))) for label in labels)


def _single_spaced(text: str) -> str:
    return re.sub(" +", " ", text)


METRICS: dict[str, Callable[[str, Labels], float]] = {
    "first_number": first_number,
    "has_word": has_word,
    "character_name": character_name,
    "last_integer": last_integer,
    "find_number": find_number,
    "values": values,
    "debugged": debugged,
    "choice": choice,
    "rouge_l_sum": rouge_l_sum,
    "qa_f1": _best_f1,
    "qa_f1_characters": _best_f1_characters,
}
INFINITEBENCH = Benchmark("infinitebench", published("infinitebench"), load)
