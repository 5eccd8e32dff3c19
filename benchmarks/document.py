"""Token ids of real text: one document, and pieces of it from different places."""

from pathlib import Path

import torch

from benchmarks.windows import LONGEST_TOKEN
from winnow import LLM
from winnow.errors import InputError
from winnow.reading import read_text
from winnow.tasks.haystack import bundled_haystack


def document_ids(llm: LLM, text: Path | None, needed: int, most: int | None = None) -> list[int]:
    """The first `needed` token ids of a text file, or of the bundled books where it is None; up to `most`, if given.

    Raises InputError where the model has no tokenizer, or the text too few tokens.
    """
    if llm.tokenizer is None:
        raise InputError("the model has no tokenizer, so it cannot read --text")
    said = "".join(bundled_haystack().sentences) if text is None else read_text(text).rstrip("\n")
    ids: list[int] = llm.tokenizer(said[: LONGEST_TOKEN * (most or needed)], verbose=False)["input_ids"]
    if len(ids) < needed:
        named = "the bundled text" if text is None else f"--text {text}"
        raise InputError(
            f"{named} has {len(ids):,} tokens; {needed:,} are needed: give a longer --text, or ask for less"
        )
    return ids[: most or needed]


def ids_of(llm: LLM, text: Path | None, shape: str | None, needed: int) -> list[int]:
    """The first `needed` token ids of a text; random ones, always the same, for the random weights of a known shape.

    Raises what `document_ids` raises.
    """
    if shape is None:
        return document_ids(llm, text, needed)
    draw = torch.Generator().manual_seed(0)
    ids: list[int] = torch.randint(llm.decoder.shape.vocab, (needed,), generator=draw).tolist()
    return ids


def pieces(ids: list[int], count: int, length: int) -> list[list[int]]:
    """So many pieces of `length` tokens, evenly over `ids`; they overlap where there is too little."""
    apart = (len(ids) - length) // max(1, count - 1)
    return (
        [ids[start : start + length] for start in range(0, apart * count, apart)] if apart else [ids[:length]] * count
    )
