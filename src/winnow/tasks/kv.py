"""Key-value retrieval: a JSON object of pairs fills the context; one key is asked for."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from winnow.errors import InputError
from winnow.tasks.draw import Draw, DrawnTask
from winnow.tasks.example import Example
from winnow.tasks.fill import fill_with_records
from winnow.tasks.words import ADJECTIVES, NOUNS

_KEYS = len(ADJECTIVES) * len(NOUNS)
SAMPLE = 64  # pairs tokenised to guess how long one is


def pair(key: str, value: str) -> str:
    """One pair as it stands in the object, and the answer in the wanted form."""
    return f'"{key}": "{value}"'


def json_object(pairs: Sequence[tuple[str, str]]) -> str:
    """The pairs as one JSON object, a pair per line."""
    return "{\n " + ",\n ".join(pair(key, value) for key, value in pairs) + "\n}"


def question(key: str) -> str:
    """The question about one key."""
    return f'What is the value of the key "{key}" in the JSON object above? Repeat the pair.'


def draw_pairs(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """`count` pairs: distinct two-word keys, five-digit values."""
    if count > _KEYS:
        raise InputError(f"{count} pairs are more than the {_KEYS} different keys there are; use a shorter context")
    keys = rng.sample(range(_KEYS), count)
    return [(f"{ADJECTIVES[k // len(NOUNS)]}-{NOUNS[k % len(NOUNS)]}", str(rng.randrange(10000, 100000))) for k in keys]


def ask_pair(
    pairs: Sequence[tuple[str, str]], target: tuple[str, str], count: int, depth: float, limit: int
) -> Example:
    """The example of `count` pairs in which `target` stands at `depth` among count - 1 of `pairs`."""
    index = round(depth * (count - 1))
    placed = [*pairs[:index], target, *pairs[index : count - 1]]
    context = json_object(placed)
    start = sum(len(pair(*other)) + len(",\n ") for other in placed[:index])  # after the opening brace and its line end
    place = start / max(1, len(context) - len("{\n \n}") - len(pair(*target)))
    return Example(context, question(target[0]), pair(*target), (target[1],), (place,), limit)


def sample_pairs() -> str:
    """`SAMPLE` pairs as an object, always the same."""
    return json_object(draw_pairs(random.Random(0), SAMPLE))


@dataclass(frozen=True)
class KeyValue(DrawnTask):
    """Synthetic key-value retrieval of Lost in the Middle, arXiv:2307.03172, with two-word keys and short values."""

    name: str = "kv"

    def make(self, draw: Draw) -> Example:
        place, sample = draw.place(), sample_pairs()
        per_record = draw.count(sample) / SAMPLE
        target, *pairs = draw_pairs(draw.rng, min(_KEYS, 8 + int(1.2 * draw.tokens / per_record)))
        limit = draw.allow(pair(*target))

        def build(count: int) -> Example:
            if count > len(pairs) + 1:
                raise InputError(
                    f"{draw.tokens} tokens need more than the {_KEYS} different keys; use a shorter context"
                )
            return ask_pair(pairs, target, count, place, limit)

        return fill_with_records(build, draw, sample, SAMPLE)
