"""Conversations to learn from: JSON Lines in, token ids and the places of the assistant's turns out.

Tokens are those that inference sees: what stands before an answer is what `LLM.render` gives for it.
"""

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from winnow.errors import InputError
from winnow.policies.compute.turns import decode_start, system_length
from winnow.policies.prompt.spelling import encode
from winnow.reading import LINES_BYTES, check_text, parse_lines, read_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, str]
BASE = "base"  # as a teacher: the model without any adapter


@dataclass(frozen=True)
class Turn:
    """One of the assistant's turns, as positions in its conversation.

    start: where its header begins, or the token before the answer where there is none; answer: its first supervised
    token; end: one after its last, which is the end-of-turn token where the template has one.
    """

    start: int
    answer: int
    end: int


@dataclass(frozen=True)
class Conversation:
    """Token ids up to the end of the last assistant turn, the turns, and what stands before the first user's message.

    system: tokens of it, None where there is no chat template. where: file and line, for messages. teacher: as its
    row says it; see `train_speed`, which alone looks at it.
    """

    ids: Sequence[int]
    turns: tuple[Turn, ...]
    system: int | None
    where: str = "the conversation"
    teacher: Any = None

    @property
    def supervised(self) -> int:
        """Tokens that are learnt."""
        return sum(turn.end - turn.answer for turn in self.turns)


@dataclass(frozen=True)
class Conversations:
    """What a file holds. too_long: how many conversations were left out; sha256: of the file."""

    items: list[Conversation]
    too_long: int
    sha256: str

    def counts(self) -> dict[str, int]:
        """Conversations, those left out, and tokens."""
        return {
            "conversations": len(self.items),
            "too_long": self.too_long,
            "tokens": sum(len(each.ids) for each in self.items),
            "supervised": sum(each.supervised for each in self.items),
        }


def read_conversations(path: Path, tokenizer: "PreTrainedTokenizerBase", *, length: int) -> Conversations:
    """Read JSON Lines of {"messages": [{"role", "content"}, ...]} or {"prompt": ..., "answer": ...}.

    Either may say {"teacher": "base"}; see `Conversation.teacher`.

    Without a chat template, an answer follows its prompt at once and the end token follows the answer; then only the
    second shape can be used.

    Args:
        length: conversations of more tokens are left out, and counted.
    Raises:
        InputError: naming file and line: what is no JSON, has neither shape or no answer, what the chat template
            refuses or renders otherwise once more messages follow; also an empty file, or one of long rows alone.
    """
    text = read_text(path, LINES_BYTES)
    read = [conversation(row, tokenizer, where) for where, row in parse_lines(text, path.name)]
    if not read:
        raise InputError(f"{path} holds no conversation; write one JSON object a line")
    items = [each for each in read if len(each.ids) <= length]
    if not items:
        shortest = min(len(each.ids) for each in read)
        raise InputError(
            f"{path}: all {len(read)} conversations are longer than {length} tokens, the shortest has {shortest}; "
            "allow more tokens or shorten them"
        )
    return Conversations(items, len(read) - len(items), hashlib.sha256(text.encode()).hexdigest())


def conversation(row: Any, tokenizer: "PreTrainedTokenizerBase", where: str) -> Conversation:
    """One row of a data file as tokens. Raises InputError, which begins with `where`."""
    messages = _messages(row, where)
    read = _by_template(messages, tokenizer, where) if tokenizer.chat_template else _plain(row, tokenizer, where)
    return replace(read, teacher=row.get("teacher"))


def _plain(row: dict[str, Any], tokenizer: "PreTrainedTokenizerBase", where: str) -> Conversation:
    if "prompt" not in row:
        raise InputError(f'{where}: the model has no chat template for messages; give {{"prompt": ..., "answer": ...}}')
    if tokenizer.eos_token_id is None:
        raise InputError(f"{where}: the tokenizer has no end token, so an answer would never end; give it an eos_token")
    prompt: Any = tokenizer(row["prompt"], verbose=False)["input_ids"]
    if not prompt:
        raise InputError(f"{where}: the prompt is empty, and an answer's first token follows one; begin the text in it")
    answer: Any = tokenizer(row["answer"], add_special_tokens=False, verbose=False)["input_ids"]
    ids = array("i", [*prompt, *answer, tokenizer.eos_token_id])
    return Conversation(ids, (Turn(len(prompt) - 1, len(prompt), len(ids)),), None, where)


def _messages(row: Any, where: str) -> list[Message]:
    """The messages of a row, checked."""
    keys = row.keys() if isinstance(row, dict) else ()
    if "messages" in keys and {"prompt", "answer"} & set(keys):
        raise InputError(f"{where}: it has messages and {{prompt, answer}}, which are two forms of the same; keep one")
    if {"prompt", "answer"} <= set(keys):
        messages: Any = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["answer"]}]
    elif "messages" in keys:
        messages = row["messages"]
    else:
        found = f"an object with {', '.join(keys) or 'no keys'}" if isinstance(row, dict) else type(row).__name__
        raise InputError(f'{where}: {found}; write {{"messages": [...]}} or {{"prompt": ..., "answer": ...}}')
    if not isinstance(messages, list) or not messages:
        raise InputError(f'{where}: messages must be a list of {{"role": ..., "content": ...}}, at least one')
    for index, message in enumerate(messages):
        fields = message if isinstance(message, dict) else {}
        if not all(isinstance(fields.get(key), str) for key in ("role", "content")):
            raise InputError(f'{where}: message {index} must be {{"role": text, "content": text}}, not {message!r}')
        check_text(message["role"], f"{where}: the role of message {index}")
        check_text(message["content"], f"{where}: message {index}")
        if message["role"] == "assistant" and not message["content"].strip():
            raise InputError(f"{where}: the assistant's message {index} is empty; write an answer or drop the row")
    if messages[0]["role"] == "assistant":
        raise InputError(f"{where}: message 0 is the assistant's; put what it answers before it")
    if not any(message["role"] == "assistant" for message in messages):
        raise InputError(f"{where}: no assistant message to learn from")
    return messages


def _by_template(messages: list[Message], tokenizer: "PreTrainedTokenizerBase", where: str) -> Conversation:
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    texts: list[str] = []  # that end where an answer begins, where it ends, where the next one begins ...
    for index in answers:
        texts += [_render(tokenizer, messages[:index], where, header=True)]
        texts += [_render(tokenizer, messages[: index + 1], where, header=False)]
    for count, (shorter, longer) in enumerate(pairwise(texts)):
        if not longer.startswith(shorter):
            raise InputError(
                f"{where}: the chat template renders the messages before message {answers[count // 2]} otherwise once "
                "more follow; write one conversation for each answer"
            )
    ids, spans = encode(tokenizer, texts[-1])
    borders = [_tokens_before(spans, len(text)) for text in texts]
    for index, text, border in zip(answers, texts[::2], borders[::2], strict=True):
        # Each prompt is tokenised again only where it could differ: the last one contains the others.
        known = index not in (answers[0], answers[-1]) or ids[:border] == encode(tokenizer, text)[0]
        if not known or spans[border][0] < len(text):
            raise InputError(
                f"{where}: the first token of message {index} reaches back into the assistant's header; let the "
                "answer begin without white space"
            )
    turns = tuple(_turn(ids, *each, tokenizer) for each in zip(borders[::2], borders[1::2], strict=True))
    return Conversation(array("i", ids[: turns[-1].end]), turns, system_length(ids, tokenizer), where)


def _turn(ids: list[int], answer: int, end: int, tokenizer: "PreTrainedTokenizerBase") -> Turn:
    start = decode_start(ids[:answer], tokenizer)
    # What follows the end token, such as a line break, is written by the template and never by the model.
    stops = [place for place in range(answer, end) if ids[place] == tokenizer.eos_token_id]
    return Turn(start, answer, stops[-1] + 1 if stops else end)


def _tokens_before(spans: list[tuple[int, int]], character: int) -> int:
    """How many tokens end at or before a character."""
    return bisect_right(spans, character, key=lambda span: span[1])


def _render(tokenizer: "PreTrainedTokenizerBase", messages: list[Message], where: str, *, header: bool) -> str:
    try:
        text: Any = tokenizer.apply_chat_template(messages, add_generation_prompt=header, tokenize=False)
    except TemplateError as error:
        raise InputError(f"{where}: the chat template refuses the conversation: {error}") from error
    return str(text)
