"""The words of tables, each with the beginning of what docs/glossary.md says of it."""

import re
from collections.abc import Iterable

WORDS = {
    "row": "one token in one layer",
    "unit": "key and value of one token in one layer and KV head",
    "parked": "a token that has stopped at a gate, and whose hidden state is held so that it can go on later",
    "revived": "a parked token that a later step has let go on",
    "slow step": "a decode step that reads everything and selects what the steps after it read",
    "memory": "the most held at once, units and all beside them",
    "TTFT": "time to the first token",
    "TPOT": "time per output token",
    "score": "the share of what was asked that was answered",
    "95 %": "where the true figure would be in 95 of 100 such measurements",
    "same": "answers that are full attention's, token for token",
    "loops": "answers that ran into their length limit repeating themselves",
    "KL": "how far the distribution of the next token is from full attention's",
    "top-1": "how often plan and full attention find the same token likeliest",
    "NLL": "how surprising the text's own next token is",
    "perplexity": "e to the power of the NLL",
    "nats": "like bits, but with natural logarithms",
    "x": "a figure over that of full attention",
    "of full": "a figure over that of full attention",
}


def explained(texts: Iterable[str], note: str = "") -> str:
    """`note`, then what each word that stands in `texts` means: "row: ...; unit: ...".

    What the note says of a word goes before what it means elsewhere.
    """
    read = " | ".join(" ".join(text.split()) for text in texts)
    known = [f"{word}: {meaning}" for word, meaning in WORDS.items() if _stands(word, read) and f"{word}:" not in note]
    return "; ".join([note, *known] if note else known)


def _stands(word: str, text: str) -> bool:
    """Whether a word stands in a text, in the singular or the plural."""
    return re.search(rf"(?<!\w){re.escape(word)}s?(?!\w)", text) is not None
