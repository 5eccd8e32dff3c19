"""Where the turns of a conversation begin, found in its token ids by the markers of the model's chat template."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WORDS = ("qzx-1", "qzx-2", "qzx-3")  # stand in for the messages of a conversation; no template says them


@dataclass(frozen=True)
class Markers:
    """Token ids that a chat template puts before a user's message, and before the answer it asks for (its header).

    user: without the white space at its end, which may be a part of the message's first token. assistant may be empty:
    some templates start an answer right behind the user's message.
    """

    user: tuple[int, ...]
    assistant: tuple[int, ...]


def markers(tokenizer: "PreTrainedTokenizerBase") -> Markers | None:
    """The markers of a tokenizer's chat template; None where it has none, or one that refuses a plain conversation."""
    return _markers_in(tokenizer, str(tokenizer.chat_template)) if tokenizer.chat_template else None


@lru_cache(maxsize=16)
def _markers_in(tokenizer: "PreTrainedTokenizerBase", template: str) -> Markers | None:
    """template: what is known is of it; it may be set later, or to another."""
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": word} for role, word in zip(roles, WORDS, strict=True)]
    try:
        first, all_three = (_render(tokenizer, part, header=False) for part in (messages[:1], messages))
        asked = _render(tokenizer, messages[:1], header=True)
    except TemplateError:
        return None
    before = _encode(tokenizer, first.partition(WORDS[0])[0])
    between = _encode(tokenizer, all_three.partition(WORDS[1])[2].partition(WORDS[2])[0])
    closed, opened = _encode(tokenizer, first), _encode(tokenizer, asked)
    shared = _common(closed, opened)
    user = _common(before[::-1], between[::-1])[::-1]
    while len(user) > 1 and not str(tokenizer.decode(user[-1:])).strip():
        user = user[:-1]
    return Markers(user=tuple(user), assistant=tuple(opened[len(shared) :]))


def closing(ids: Sequence[int], tokenizer: "PreTrainedTokenizerBase") -> list[int] | None:
    """What the chat template puts behind a user's message and before the answer; None where `ids` have no such turn."""
    if system_length(ids, tokenizer) is None:
        return None
    asked = _render(tokenizer, [{"role": "user", "content": WORDS[0]}], header=True)
    return _encode(tokenizer, asked.partition(WORDS[0])[2])


def decode_start(ids: Sequence[int], tokenizer: "PreTrainedTokenizerBase | None") -> int:
    """Where the decode phase of a prompt begins: with the last assistant header, else with the last token."""
    found = markers(tokenizer) if tokenizer is not None else None
    start = _find(ids, found.assistant, last=True) if found is not None else None
    return len(ids) - 1 if start is None else start


def last_start(decode_from: str, prompt: int) -> int | None:
    """Where a decode phase "last:m" of a prompt of so many tokens begins, 0 where it has fewer; None of "header"."""
    _, _, count = decode_from.partition(":")
    return max(0, prompt - int(count)) if count else None


def system_length(ids: Sequence[int], tokenizer: "PreTrainedTokenizerBase | None") -> int | None:
    """How many tokens stand before the first user's message and its marker; None where none is found."""
    found = markers(tokenizer) if tokenizer is not None else None
    return _find(ids, found.user, last=False) if found is not None else None


def _render(tokenizer: "PreTrainedTokenizerBase", messages: list[dict[str, str]], *, header: bool) -> str:
    text: Any = tokenizer.apply_chat_template(messages, add_generation_prompt=header, tokenize=False)
    return str(text)


def _encode(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    ids: Any = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return list(ids)


def _common(first: list[int], second: list[int]) -> list[int]:
    """The longest prefix of both."""
    count = 0
    while count < min(len(first), len(second)) and first[count] == second[count]:
        count += 1
    return first[:count]


def _find(ids: Sequence[int], wanted: tuple[int, ...], *, last: bool) -> int | None:
    """Where `wanted` stands in `ids`, the first or the last time."""
    if not wanted:
        return None
    places = range(len(ids) - len(wanted) + 1)
    return next(
        (at for at in (reversed(places) if last else places) if tuple(ids[at : at + len(wanted)]) == wanted), None
    )
