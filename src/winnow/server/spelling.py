"""Tokens and their log-probabilities as text: in the form of completions, and in that of chats."""

import functools
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from winnow.engine.request import Likeliest
from winnow.policies.prompt.spelling import BYTE, UNDECODED

LEAST = -9999.0  # instead of -inf, which JSON does not have


class Spelling:
    """Spells tokens, each by itself."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.token = functools.lru_cache(maxsize=2**16)(self._token)

    def classic(
        self, tokens: Sequence[int], found: Sequence[Likeliest | None], starts: list[int]
    ) -> dict[str, list[Any]]:
        """For completions. starts: characters before each token; the first of a prompt has no probability."""
        top: list[dict[str, float] | None] = []
        for each in found:
            # Where two tokens have one text, the likelier comes last and stays.
            ranked = sorted(each.items(), key=lambda item: item[1]) if each is not None else ()
            top.append(None if each is None else {self.token(token): _finite(value) for token, value in ranked})
        own = [None if each is None else _finite(each[token]) for token, each in zip(tokens, found, strict=True)]
        texts = [self.token(token) for token in tokens]
        return {"tokens": texts, "token_logprobs": own, "top_logprobs": top, "text_offset": starts}

    def spoken(self, tokens: Sequence[int], found: Sequence[Likeliest], count: int) -> list[dict[str, Any]]:
        """For chats. count: how many of the likeliest."""
        rows = []
        for token, each in zip(tokens, found, strict=True):
            ranked = sorted(each.items(), key=lambda item: -item[1])[:count]
            rows.append({**self._one(token, each[token]), "top_logprobs": [self._one(*item) for item in ranked]})
        return rows

    def _one(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.token(token)
        return {"token": text, "logprob": _finite(logprob), "bytes": self._bytes(token, text)}

    def _bytes(self, token: int, text: str) -> list[int] | None:
        """Those of its text; of a token that is a part of a character those of its piece, in either spelling of bytes;
        None where that says none."""
        if UNDECODED not in text:
            return list(text.encode())
        piece: Any = self.tokenizer.convert_ids_to_tokens(token)
        if isinstance(piece, bytes):  # as some slow tokenizers have them
            return list(piece)
        if UNDECODED in piece:  # a piece of text that has this letter
            return list(text.encode())
        if one := BYTE.fullmatch(piece):
            return [int(one[1], 16)]
        letters = _letters()
        return [letters[each] for each in piece] if letters.keys() >= set(piece) else None

    def _token(self, token: int) -> str:
        """Behind itself: alone, some decoders drop its space."""
        once, twice = (
            str(self.tokenizer.decode([token] * times, clean_up_tokenization_spaces=False)) for times in (1, 2)
        )
        return twice[len(once) :]


@functools.cache
def _letters() -> dict[str, int]:
    """Which byte each letter of the byte-level alphabet stands for."""
    return {letter: byte for byte, letter in bytes_to_unicode().items()}


def _finite(logprob: float) -> float:
    return max(logprob, LEAST)
