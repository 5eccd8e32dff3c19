"""The prompts a plan is tuned on: texts of the user's or tasks, in a part to search on and one to confirm on."""

import hashlib
import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.errors import InputError
from winnow.evaluation.evaluate import Case
from winnow.reading import json_lines, read_text
from winnow.runtime.llm import LLM
from winnow.tasks import Example
from winnow.tasks.example import share_found

OWN = "prompts"  # what stands for the task where the user brought the texts
LEAST = 4  # prompts: two for each part, so that each has a spread
SUFFIXES = (".txt", ".md")


@dataclass(frozen=True)
class Written:
    """A prompt as text. answers: strings that an answer must hold, none where that is not known."""

    text: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Parts:
    """Indexes of prompts: those that the search sees, and those that what it found is confirmed on."""

    search: tuple[int, ...]
    confirmation: tuple[int, ...]


def read_prompts(path: Path) -> list[Written]:
    """The prompts of a directory of .txt and .md files, or of JSON Lines.

    A line is {"prompt": ...} or {"context": ..., "question": ...}, with "answer", a string or a list of them, if it is
    known. Raises InputError naming the file, and the line, that cannot be used.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        found = [Written(_not_empty(read_text(file).rstrip("\n"), str(file)), ()) for file in files]
        rule = f"put one prompt a file there, named *{' or *'.join(SUFFIXES)}"
    else:
        found = [_row(row, where) for where, row in json_lines(path)]
        rule = 'write one object a line, {"prompt": ...}'
    if not found:
        raise InputError(f"{path} holds no prompt; {rule}")
    return found


def own_cases(llm: LLM, prompts: Sequence[Written], encode: Callable[[str], list[int]], max_tokens: int) -> list[Case]:
    """The prompts that fit the model's positions with `max_tokens` tokens after them; the others are left out.

    encode: text to token ids, template included. Raises InputError where no prompt fits.
    """
    room = llm.decoder.shape.max_positions + 1 - max_tokens
    encoded = [(each, encode(each.text)) for each in prompts]
    cases: list[Case] = []
    for each, ids in encoded:
        if len(ids) <= room:
            example = Example(each.text, "", "", each.answers, (), max_tokens)
            cases.append(Case(OWN, len(ids), len(cases), None, example, ids, share_found if each.answers else None))
    if not cases:
        shortest = min(len(ids) for _, ids in encoded)
        raise InputError(
            f"all {len(prompts)} prompts are too long: the shortest has {shortest} tokens, and the model's "
            f"{llm.decoder.shape.max_positions} positions leave {max(0, room)} beside {max_tokens} for an answer; "
            "shorten them"
        )
    return cases


def split(cases: Sequence[Case], seed: int) -> Parts:
    """Every other prompt of each task and length, in an order drawn with `seed`; in both parts tasks take turns.

    Raises InputError for fewer than 4 prompts.
    """
    if len(cases) < LEAST:
        raise InputError(
            f"{len(cases)} prompts are too few to search on some and confirm on others; give at least {LEAST}"
        )
    groups: dict[tuple[str, int], list[int]] = {}
    for index, case in enumerate(cases):
        groups.setdefault((case.task, 0 if case.task == OWN else case.length), []).append(index)
    rng, first = random.Random(seed), 0
    lanes: tuple[list[list[int]], list[list[int]]] = ([], [])
    for group in groups.values():
        rng.shuffle(group)
        lanes[0].append(group[first::2])
        lanes[1].append(group[1 - first :: 2])
        first ^= len(group) % 2  # a group with one left over favours the other part next time
    return Parts(_in_turns(lanes[0]), _in_turns(lanes[1]))


def digest(cases: Sequence[Case]) -> str:
    """What two sets of prompts have in common only if they are the same."""
    content = [[case.ids, case.params.max_tokens] for case in cases]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _in_turns(lanes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(each for turn in itertools.zip_longest(*lanes) for each in turn if each is not None)


def _row(row: Any, where: str) -> Written:
    parts = ("prompt",) if isinstance(row, dict) and "prompt" in row else ("context", "question")
    if not (isinstance(row, dict) and all(isinstance(row.get(part), str) for part in parts)):
        raise InputError(f'{where} must be {{"prompt": text}} or {{"context": text, "question": text}}')
    answer = row.get("answer", [])
    answers = [answer] if isinstance(answer, str) else answer
    if not (isinstance(answers, list) and all(isinstance(each, str) and each for each in answers)):
        raise InputError(f"{where}: answer={answer!r} must be a text, or a list of them")
    return Written(_not_empty("\n\n".join(row[part] for part in parts), where), tuple(answers))


def _not_empty(text: str, where: str) -> str:
    if not text.strip():
        raise InputError(f"{where}: the prompt is empty; give at least one word")
    return text
