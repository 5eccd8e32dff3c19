"""Which characters of a text each token covers."""

import re
from typing import TYPE_CHECKING, Any

from winnow.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

UNDECODED = "�"  # what a decoder shows for bytes that are not yet a whole character
BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a piece that is one, as SentencePiece spells it
LONGEST = 8  # tokens that may share a character; bytes that are none after so many never will be

Span = tuple[int, int]  # characters [start, stop) of a text; tokens that share a character have the same
Spelt = tuple[str, list[Span]]  # a text, and the characters of each of its tokens


def special_tokens(tokenizer: "PreTrainedTokenizerBase") -> set[int]:
    """The ids of tokens that are not text: the start and end of a text, chat markers."""
    added = tokenizer.added_tokens_decoder
    return {*tokenizer.all_special_ids, *(index for index, token in added.items() if token.special)}


def encode(tokenizer: "PreTrainedTokenizerBase", text: str, *, special: bool = False) -> tuple[list[int], list[Span]]:
    """Token ids of a text, and the characters of each. Raises InputError where the tokenizer cannot say.

    special: with the tokens that the tokenizer puts around every text, which cover no character.
    """
    if not tokenizer.is_fast:
        raise InputError(f"{type(tokenizer).__name__} cannot say which characters a token covers; use a fast tokenizer")
    encoded: Any = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True, verbose=False)
    return encoded["input_ids"], encoded["offset_mapping"]


def spell(tokenizer: "PreTrainedTokenizerBase", ids: list[int]) -> Spelt:
    """The text of tokens, and the characters of each."""
    text = _decode(tokenizer, ids)
    again, spans = encode(tokenizer, text)
    # A prompt joined from parts, or one that ends inside a character, is not what its text encodes to.
    return (text, spans) if again == ids else spell_each(tokenizer, ids)


def spell_each(tokenizer: "PreTrainedTokenizerBase", ids: list[int]) -> Spelt:
    """The same, token by token. Each is decoded behind the one before it: alone, some decoders drop its space."""
    text, context = "", 0
    spans: list[Span] = []
    for stop in range(1, len(ids) + 1):
        known = _decode(tokenizer, ids[context : len(spans)])
        now = _decode(tokenizer, ids[context:stop])
        waiting = stop - len(spans)
        if now.endswith(UNDECODED) and waiting < LONGEST and stop < len(ids):
            continue
        context, new = len(spans), now[len(known) :]
        spans += [(len(text), len(text) + len(new))] * waiting
        text += new
    return text, spans


def _decode(tokenizer: "PreTrainedTokenizerBase", ids: list[int]) -> str:
    return str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))
