"""What the flags of recipes that measure many arms are read by."""

from __future__ import annotations

import argparse
import re


def pattern(text: str) -> re.Pattern[str]:
    """A regular expression."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from error


def share(text: str) -> tuple[int, int]:
    """ "1/2" -> (1, 2): the first of two."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not like 1/2, 2/2")
    return int(found[1]), int(found[2])
