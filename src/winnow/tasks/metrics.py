"""Scores of free-form answers: F1 and exact match over words, ROUGE-L; each 0 .. 1, as published."""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

Metric = Callable[[str, str], float]  # (text, reference) -> 0 .. 1

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ROUGE_WORD = re.compile(r"[a-z0-9]+")


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation, articles and surplus white space. Source: SQuAD, arXiv:1606.05250."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def best(metric: Metric, text: str, references: Iterable[str]) -> float:
    """The highest of `metric(text, reference)`; 0 without references."""
    return max((metric(text, reference) for reference in references), default=0.0)


def token_f1(found: Sequence[str], wanted: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over two bags of tokens; 0 where they share none."""
    shared = sum((Counter(found) & Counter(wanted)).values())
    return 2 * shared / (len(found) + len(wanted)) if shared else 0.0


def qa_f1(text: str, reference: str) -> float:
    """F1 over the words of the normalised answers. Source: SQuAD, arXiv:1606.05250, section 6.1."""
    return token_f1(normalise(text).split(), normalise(reference).split())


def contains(text: str, reference: str) -> float:
    """1 if the normalised reference stands in the normalised text, else 0.

    Source: the accuracy of Lost in the Middle, arXiv:2307.03172, section 2.2; a part of a word counts, as there.
    """
    return float(normalise(reference) in normalise(text))


def rouge_words(text: str) -> list[str]:
    """The words that the rouge-score package compares, without its stemmer: runs of a-z and 0-9 in lower case."""
    return _ROUGE_WORD.findall(text.lower())


def rouge_l(text: str, reference: str) -> float:
    """ROUGE-L: F1 over the longest common subsequence of words, as the rouge-score package computes it, unstemmed."""
    found, wanted = rouge_words(text), rouge_words(reference)
    if not found or not wanted:
        return 0.0
    return 2 * lcs_table(wanted, found)[-1][-1] / (len(found) + len(wanted))


def lcs_table(first: Sequence[str], second: Sequence[str]) -> list[list[int]]:
    """[i][j]: length of the longest common subsequence of the first i of `first` and the first j of `second`."""
    table = [[0] * (len(second) + 1)]
    for word in first:
        above, row = table[-1], [0]
        for j, other in enumerate(second):
            row.append(above[j] + 1 if word == other else max(above[j + 1], row[j]))
        table.append(row)
    return table


def lcs_indices(first: Sequence[str], second: Sequence[str], *, up: bool = False) -> list[int]:
    """Places in `first` of one longest common subsequence, ascending.

    up: which of equal ones: as the package rouge-score walks its table; otherwise as the package rouge does.
    """
    table = lcs_table(first, second)
    i, j, places = len(first), len(second), list[int]()
    while i and j:
        if first[i - 1] == second[j - 1]:
            i, j = i - 1, j - 1
            places.append(i)
        elif table[i - 1][j] > table[i][j - 1] or (up and table[i - 1][j] == table[i][j - 1]):
            i -= 1
        else:
            j -= 1
    return places[::-1]
