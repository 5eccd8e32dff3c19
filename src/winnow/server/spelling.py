"""Tokens and their log-probabilities as text: in the form of completions, and in that of chats."""

import functools
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from winnow.engine.request import Likeliest
from winnow.policies.prompt.spelling import UNDECODED

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
        # A part of a character has no text, and so no bytes of its own that a text would say.
        raw = None if UNDECODED in text else list(text.encode())
        return {"token": text, "logprob": _finite(logprob), "bytes": raw}

    def _token(self, token: int) -> str:
        """Behind itself: alone, some decoders drop its space."""
        once, twice = (
            str(self.tokenizer.decode([token] * times, clean_up_tokenization_spaces=False)) for times in (1, 2)
        )
        return twice[len(once) :]


def _finite(logprob: float) -> float:
    return max(logprob, LEAST)
