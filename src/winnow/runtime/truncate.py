"""Prompts that are longer than they may be: which part goes, and what of a prompt may go at all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from winnow.errors import CapacityError, InputError
from winnow.policies.prompt.spelling import Span, encode, special_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Part = Literal["head", "middle", "tail"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class Cut:
    """A prompt that was shortened. ids: what is left; first, stop: the tokens [first, stop) of the whole that went."""

    ids: list[int]
    first: int
    stop: int


def check_part(part: str | None) -> None:
    """Raise InputError for a part that nobody can take away."""
    if part is not None and part not in PARTS:
        raise InputError(f"truncate={part!r} must be {', '.join(PARTS[:-1])} or {PARTS[-1]}: the part to take away")


def cut(ids: Sequence[int], room: int, part: Part, start: int = 0, stop: int | None = None) -> Cut:
    """Take away as much of tokens [start, stop), from their head, middle or tail, as leaves `room` tokens in all.

    Raises CapacityError where the others alone are more.
    """
    stop = len(ids) if stop is None else stop
    excess = max(0, len(ids) - room)
    if excess and excess >= stop - start:
        raise CapacityError(
            f"{len(ids) - (stop - start)} tokens of the prompt may not be taken away, and there is room for {room}; "
            "ask for fewer new tokens, or shorten the question"
        )
    first = {"head": start, "middle": start + (stop - start - excess) // 2, "tail": stop - excess}[part]
    return Cut([*ids[:first], *ids[first + excess :]], first, first + excess)


def start_of_text(ids: Sequence[int], tokenizer: "PreTrainedTokenizerBase | None") -> int:
    """How many special tokens a prompt begins with; they stay."""
    marks = special_tokens(tokenizer) if tokenizer is not None else set()
    return next((place for place, token in enumerate(ids) if token not in marks), len(ids))


def cut_document(
    tokenizer: "PreTrainedTokenizerBase", text: str, document: str, room: int, part: Part, *, rendered: bool
) -> Cut:
    """The same of the document within a prompt; what stands around it stays, and no character is split.

    rendered: whether `text` is by the chat template, which writes the special tokens itself. Raises InputError where
    the document is no part of it.
    """
    ids, spans = encode(tokenizer, text, special=not rendered)
    at = text.find(document.strip())
    if at < 0:
        raise InputError("the chat template changes the document, so no part of it can be taken away; use --no-chat")
    end = at + len(document.strip())
    inside = [place for place, span in enumerate(spans) if at <= span[0] < span[1] <= end]
    start, stop = (inside[0], inside[-1] + 1) if inside else (0, 0)
    if len(ids) <= room:
        return Cut(ids, stop, stop)
    made = cut(ids, room, part, start, stop)
    first, last = _whole(spans, made.first, made.stop, start, stop)
    return Cut([*ids[:first], *ids[last:]], first, last)


def _whole(spans: list[Span], first: int, stop: int, least: int, most: int) -> tuple[int, int]:
    """Borders that do not stand between tokens of the same character."""
    while first > least and spans[first] == spans[first - 1]:
        first -= 1
    while stop < most and spans[stop] == spans[stop - 1]:
        stop += 1
    return first, stop
