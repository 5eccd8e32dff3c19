"""Two forms of a generated task: other wordings and other words, so that settings can be chosen on one of them."""

import random
from collections.abc import Collection
from typing import Annotated

from annotated_types import Interval

from winnow.errors import InputError
from winnow.tasks.words import ADJECTIVES, NOUNS

Form = Annotated[int, Interval(ge=0, le=1)]


def check_form(form: int) -> None:
    """Raise InputError for a form that there is not."""
    if form not in (0, 1):
        raise InputError(f"form={form!r} must be 0 or 1: which wording, and which half of the words")


def draw_words(rng: random.Random, count: int, form: int, without: Collection[str] = ()) -> list[str]:
    """`count` distinct words of an adjective and a noun, from the form's half of either; none of `without`."""
    adjectives, nouns = ADJECTIVES[form::2], NOUNS[form::2]
    places = rng.sample(range(len(adjectives) * len(nouns)), count + len(without))
    made = [f"{adjectives[place // len(nouns)]}-{nouns[place % len(nouns)]}" for place in places]
    return [word for word in made if word not in without][:count]
