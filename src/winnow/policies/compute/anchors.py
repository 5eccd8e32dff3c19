"""Anchors: prompt tokens that go through all layers although the prompt stops at one.

An anchor set is written as names joined by +:

    none        no anchor
    bos         the first token of the text
    system      all before the first user's message, by the chat template's markers
    first:4     the first 4 tokens
    last:16     the last 16 before the decode phase
    random:8    8 tokens before the decode phase, drawn by their number and nothing else
    all         the whole prompt
"""

import random
import re

from winnow.errors import InputError

_NAMED = re.compile(r"(none|bos|system|all)|(first|last|random):([1-9]\d{0,17})")


def anchors_problem(text: str) -> str | None:
    """What is wrong with the spelling of an anchor set, or None."""
    for part in _parts(text):
        if not _NAMED.fullmatch(part):
            return f"anchors={text!r}: {part!r} is none of none, bos, system, all, first:4, last:16, random:8"
    return None


def anchor_positions(text: str, start: int, system: int | None) -> list[int]:
    """The positions of an anchor set, ascending, all below `start`, where the decode phase begins.

    system: tokens before the first user's message, None where that is not known.
    Raises InputError where the prompt has no such tokens.
    """
    found: set[int] = set()
    for part in _parts(text):
        found |= _positions(part, start, system)
    return sorted(found)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split("+")]


def _positions(part: str, start: int, system: int | None) -> set[int]:
    name, _, number = part.partition(":")
    count = {"none": 0, "bos": min(1, start), "all": start}.get(name, int(number or 0))
    if name == "system":
        if system is None:
            raise InputError(
                "anchors='system' needs a prompt made by the model's chat template, which marks where the user's first "
                "message begins; use anchors='first:n' with n tokens instead"
            )
        count = min(system, start)
    if count > start:
        raise InputError(
            f"anchors={part!r} asks for {count} tokens, and the prompt has {start} before the decode phase"
        )
    if name == "last":
        return set(range(start - count, start))
    if name == "random":
        return set(random.Random(start).sample(range(start), count))
    return set(range(count))
