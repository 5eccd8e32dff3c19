"""Windows of real texts: as many from every domain, of one length, each from the start of a paragraph on."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from benchmarks.texts import Text, texts
from winnow.errors import InputError

LONGEST_TOKEN = 12  # characters: an excerpt of so many for each token wanted is long enough for nearly all texts
_PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\S)")


@dataclass(frozen=True)
class Window:
    """Consecutive tokens of a text, from the start of a paragraph on. index: its number in the domain."""

    domain: str
    index: int
    text: str
    ids: tuple[int, ...]


def windows(
    directory: str | Path,
    tokenizer: PreTrainedTokenizerBase | None,
    tokens: int,
    examples: int,
    *,
    domains: Sequence[str] = (),
    seed: int = 0,
) -> list[Window]:
    """`examples` windows of `tokens` tokens from each of the domains (none named: all that the directory holds).

    No two begin at the same place; a window is a function of (seed, domain, index) and those before it: more examples
    add to those there were. Windows take turns between domains. Raises InputError where there is no tokenizer, where a
    domain is unknown, and where its texts do not hold so many.
    """
    if tokenizer is None:
        raise InputError("the model has no tokenizer, so it cannot read text; give a directory with a tokenizer.json")
    found: dict[str, list[Text]] = {}
    for text in texts(directory):
        found.setdefault(text.domain, []).append(text)
    if missing := [domain for domain in domains if domain not in found]:
        raise InputError(f"no text of domain {missing[0]!r} in {directory}; it holds {', '.join(found)}")
    chosen = {domain: found[domain] for domain in dict.fromkeys(domains or found)}
    taken: set[tuple[str, str, int]] = set()
    return [
        _window(domain, index, mine, tokenizer, tokens, seed, taken)
        for index in range(examples)
        for domain, mine in chosen.items()
    ]


def _window(
    domain: str,
    index: int,
    mine: Sequence[Text],
    tokenizer: PreTrainedTokenizerBase,
    tokens: int,
    seed: int,
    taken: set[tuple[str, str, int]],
) -> Window:
    """From the texts in turn, in an order drawn once per domain, at a paragraph drawn from those with enough after.

    Not one of those `taken` (domain, text, start), to which it is added.
    """
    order = random.Random(f"{seed} {domain}").sample(mine, len(mine))
    longest = 0
    for turn in range(len(order)):
        text = order[(index + turn) % len(order)]
        rng = random.Random(f"{seed} {domain} {index} {text.id}")
        starts = [0, *(match.end() for match in _PARAGRAPH.finditer(text.text))]
        for start in (*(rng.choice(starts) for _ in range(4)), 0):
            excerpt = text.text[start : start + LONGEST_TOKEN * tokens]
            ids = tokenizer(excerpt, add_special_tokens=False)["input_ids"]
            if len(ids) >= tokens and (domain, text.id, start) not in taken:
                taken.add((domain, text.id, start))
                return Window(domain, index, text.id, tuple(ids[:tokens]))
            longest = max(longest, len(ids))
    raise InputError(
        f"domain {domain!r} has no {index + 1} different windows of {tokens} tokens, its longest text {longest}: use a "
        "shorter length, fewer examples, or leave the domain out"
    )
