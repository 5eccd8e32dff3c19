"""The tasks of the protocol, on the split's part of the data."""

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.quality.split import HAYSTACK, Split, side_of
from winnow import LLM
from winnow.errors import InputError
from winnow.evaluation.evaluate import Case, cases
from winnow.tasks import TASKS, Task, task

RULER = (
    "niah_single", "niah_words", "niah_uuids", "niah_multikey", "niah_multivalue", "niah_multiquery",
    "variables", "common_words", "frequent_words",
)  # fmt: skip
DATA = ("hotpotqa", "covid_qa", "nq_multidoc", "banking77_options")
TAUGHT = ("passkey", "number", "kv", "multi_needle")  # in one wording, that of the bundled toy's training
SHORTEST, LONGEST = 512, 8192  # tokens of a prompt


def split_tasks(names: Sequence[str], folder: Path, split: Split) -> list[Task]:
    """The tasks, each once. folder: what `write_split` has written. Raises InputError for one that is not of these."""
    known = (*RULER, *DATA, *TAUGHT)
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"{unknown[0]!r} is no task of the protocol; there are {', '.join(known)}")
    offered = {"data": folder, "haystack": folder / HAYSTACK, "form": side_of(split)}
    made = []
    for name in dict.fromkeys(names):
        takes = inspect.signature(TASKS[name]).parameters
        made.append(task(name, **{key: value for key, value in offered.items() if key in takes}))
    return made


def split_seed(seed: int, split: Split) -> int:
    """The seed that a split draws with."""
    return 2 * seed + side_of(split)


def split_cases(
    llm: LLM, tasks: Sequence[Task], lengths: Sequence[int], questions: int, seed: int, split: Split
) -> Iterator[Case]:
    """`questions` of every task and length; each is a function of (seed, split, task, length, index) alone."""
    if wrong := [length for length in lengths if not SHORTEST <= length <= LONGEST]:
        raise InputError(f"{wrong[0]} tokens: prompts of the protocol have {SHORTEST} to {LONGEST}")
    return cases(llm, tasks, lengths, questions, seed=split_seed(seed, split))
