"""The words of tables, each with the beginning of what docs/glossary.md says of it."""

import re
from collections.abc import Iterable

WORDS = {
    "row": "one token in one layer",
    "unit": "key and value of one token in one layer and KV head",
    "parked": "stopped at a gate, and held so that it can go on later",
    "revived": "parked before, and let go on by a later step",
    "slow step": "reads everything, and selects what the steps after it read",
    "memory": "the most held at once",
    "TTFT": "time to the first token",
    "TPOT": "time per output token",
    "score": "the share that was answered",
    "95 %": "where the true figure is in 95 of 100 such measurements",
    "same": "answers that are full attention's",
    "loops": "answers that repeat themselves up to their limit",
    "KL": "divergence from full attention",
    "top-1": "places where both find the same token likeliest",
    "NLL": "surprise at the text's own next token",
    "perplexity": "e to the power of the NLL",
    "nats": "bits by natural logarithms",
    "x": "over full attention's",
    "of full": "over full attention's",
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
