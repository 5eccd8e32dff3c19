"""L-Eval, arXiv:2307.11088: 20 datasets of long documents with instructions, in its published files and scores.

Closed-ended datasets are scored by its exact match, open-ended ones by F1 or ROUGE-L, as each record says. Records that
it leaves to people or to a model to judge are left out. Its system prompt and its message are one user message here.
"""

import re
import string
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

from winnow.tasks.benchmarks.question import Benchmark, Dataset, Question, against, published
from winnow.tasks.metrics import Metric, qa_f1, rouge_l
from winnow.tasks.rows import Row, read_rows

LETTERS = "ABCD"
OPEN: dict[str, Metric] = {"f1": qa_f1, "rouge": rouge_l}
JUDGED = ("LLM", "human")
_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)
_OPTION = re.compile(r"([A-Z])(?=[\s.)])")
_FACT = re.compile(r"\s*(\w+)\s*\[fact:\s*(\w+)\s*\]\s*$", re.IGNORECASE)
_DOCUMENT, _FACTS = (
    "based on the world described in the document.",
    "based on the real-world knowledge and facts up until your last training",
)

NONE = "None"  # the letters of an empty answer, which are nobody's


def load(path: Path, name: str, dataset: Dataset) -> list[Question]:
    """The questions of one file: fields input, instructions, outputs, evaluation. Raises InputError for a bad line."""
    found: list[Question] = []
    for row in read_rows(path):
        document, kind, asked, wanted = row.text("input"), row.text("evaluation"), row["instructions"], row["outputs"]
        if not isinstance(asked, list) or not isinstance(wanted, list) or len(asked) != len(wanted):
            raise row.error("'instructions' and 'outputs' must be lists of the same length")
        if other := [each for each in (*asked, *wanted) if not isinstance(each, str)]:
            raise row.error(f"instructions and outputs must be texts, not {other[0]!r:.60}")
        if kind in JUDGED:
            continue
        if dataset.metric == "open" and kind not in OPEN:
            raise row.error(f"'evaluation' is {kind!r}; known are {', '.join([*OPEN, *JUDGED])}")
        for instruction, output in zip(asked, wanted, strict=True):
            if dataset.metric == "judgement":
                found += _judgements(name, dataset, document, instruction, output, row)
                continue
            words = len(output.split())
            prompt = dataset.prompt.format(document=document, instruction=instruction, words=words)
            metric = OPEN[kind] if dataset.metric == "open" else CLOSED[dataset.metric]
            found.append(_question(name, dataset, prompt, instruction, output, metric))
    return found


def exact_match(text: str, reference: str) -> float:
    """Exact match of L-Eval: the same letters (a quarter for some of them), the same number, or reference in text."""
    letters, right = _bare(text), _bare(reference)
    if set(right) <= set(LETTERS):
        return 1.0 if letters == right else 0.25 if set(letters) <= set(right) else 0.0
    try:
        return float(float(text) == float(reference))
    except ValueError:
        line = next((line for line in text.split("\n") if len(line) > 1), text)
        return float(reference.lower().replace(" ", "") in line.lower().replace(" ", ""))


def choice(text: str, *, several: bool) -> str:
    """The letters that an answer chooses: the first of A to D, or of several, all that look like options."""
    if not text.strip():
        return NONE
    if text in LETTERS:
        return text
    if not several and (first := next((letter for letter in text if letter in LETTERS), None)):
        return first
    leading = "".join(takewhile(LETTERS.__contains__, text))
    if len(leading) > 1:
        return "".join(sorted(set(leading)))
    rest = text[len(leading) :].split("Question")[0]
    if found := "".join(sorted({*leading, *_OPTION.findall(rest)} & set(LETTERS))):
        return found
    run = re.search(f"[{LETTERS}]+", rest)
    return "".join(sorted(set(run[0]))) if run else "A"


def number(text: str) -> str:
    """The digits, up to a full stop, of what follows "The answer is", else of the last word with a digit in it."""
    if match := re.search(r"The answer is (\S+)", text):
        word = match[1]
    else:
        words = text.split("\n\n")[0].split(" ")[::-1]
        word = next((word for word in words if any(map(str.isdigit, word))), "")
    return "".join(filter(str.isdigit, word.split(".")[0]))


def plain_code(text: str) -> str:
    """Printed values without commas, quotes, and blanks between brackets."""
    text = re.sub(r"\s+", " ", text)
    for old, new in ((",", ""), ("'", ""), ("\\", ""), (".0", ""), ("] [", "]["), ("[ [", "[["), ("] ]", "]]")):
        text = text.replace(old, new)
    return text


def code_output(text: str, reference: str) -> str:
    """The part of an answer that should be the printed value: after "the final output", or its last words."""
    count = len(reference.split()) + 3
    text = plain_code(text)
    for words in ("will be", "of the code", "is", "would be", "the value of", "the result of", "printed"):
        text = text.replace(words, "")
    if "the final output" in text:
        return " ".join(re.split(r"\s+", text.split("the final output")[-1])[:count])
    return " ".join(re.split(r"\s+", text)[-count:])


def judgement(text: str) -> str:
    """The first word with true or false in it, in lower case; "<error>" without one."""
    words = text.lower().split()
    return next((value for word in words for value in ("true", "false") if value in word), "<error>")


def _judgements(name: str, dataset: Dataset, document: str, instruction: str, output: str, row: Row) -> list[Question]:
    """Two questions, as published: what the story says, and what is true of the world, without the story."""
    match = _FACT.match(output)
    if match is None:
        raise row.error(f"an output must be like 'True [fact: False]', not {output!r:.60}")
    story = dataset.prompt.format(document=document, instruction=instruction)
    world = instruction.replace(_DOCUMENT, _FACTS) + "\nAnswer:"
    wanted = (match[1].lower(), match[2].lower())
    metric = CLOSED["judgement"]
    pairs = zip((story, world), wanted, strict=True)
    return [_question(name, dataset, prompt, instruction, reference, metric) for prompt, reference in pairs]


def _question(name: str, dataset: Dataset, prompt: str, asked: str, reference: str, metric: Metric) -> Question:
    return Question(name, prompt, asked, (reference,), dataset.max_tokens, True, against(metric, reference))


def _letters(reference: str) -> str:
    return re.sub("[^A-D]", "", (reference.split() or [""])[0]) or "A"


def _bare(text: str) -> str:
    """Without ASCII punctuation, lower-case articles and surplus white space; case is kept."""
    text = text.translate(_ASCII_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


CLOSED: dict[str, Callable[[str, str], float]] = {
    "choice": lambda text, reference: exact_match(choice(text, several=False), _letters(reference)),
    "choices": lambda text, reference: exact_match(choice(text, several=True), _letters(reference)),
    "number": lambda text, reference: exact_match(number(text), number(reference)),
    "code_output": lambda text, reference: exact_match(code_output(text, reference), plain_code(reference)),
    "judgement": lambda text, reference: exact_match(judgement(text), reference),
    "exact": exact_match,
}
LEVAL = Benchmark("leval", published("leval"), load)
