"""When a decode step is slow: at the start of a sentence, every so often, by chance, or never."""

import functools
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from winnow.policies.prompt.spelling import BYTE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ENDERS = ".?!。？！"
ENDS = re.compile(rf"[{ENDERS}]+\n*")
LETTER_OR_DIGIT = re.compile(r"[A-Za-z0-9]")


@dataclass(frozen=True)
class Boundaries:
    """The tokens of a vocabulary that sentences end with.

    enders: end a sentence by themselves. pairs: two tokens that end one together. skipped: are no start of a sentence.
    """

    enders: frozenset[int]
    pairs: frozenset[tuple[int, int]] = frozenset()
    skipped: frozenset[int] = frozenset()

    def end(self, before: int | None, token: int) -> bool:
        """Whether a sentence ends with `token`, which comes after the token `before`."""
        return token in self.enders or (before, token) in self.pairs


def boundaries_of(tokenizer: "PreTrainedTokenizerBase") -> Boundaries:
    """Found in the vocabulary: what is only full stops, question and exclamation marks, Latin or CJK, and line ends
    after them; what is only white space starts no sentence. Source: the authors' lists for Qwen3, for any tokenizer."""
    return _boundaries_among(tokenizer, len(tokenizer))


@functools.lru_cache(maxsize=8)
def _boundaries_among(tokenizer: "PreTrainedTokenizerBase", tokens: int) -> Boundaries:
    """tokens: how many there are; some may be added later."""
    raw = tokenizer.convert_ids_to_tokens(list(range(tokens)))
    # Words are most of a vocabulary; what is left is decoded, which is slow.
    ids = [i for i, each in enumerate(raw) if each and (BYTE.fullmatch(each) or not LETTER_OR_DIGIT.search(each))]
    texts = _texts(tokenizer, ids)
    marks = [token for token, text in texts.items() if text in tuple(ENDERS)]
    spaces = [token for token, text in texts.items() if text == " "]
    wide = [(mark, end) for mark in marks for end, text in texts.items() if texts[mark] == "！" and text == "\n"]
    return Boundaries(
        enders=frozenset(token for token, text in texts.items() if ENDS.fullmatch(text)),
        pairs=frozenset([(mark, space) for mark in marks for space in spaces] + wide),
        skipped=frozenset(token for token, text in texts.items() if text and not text.strip()),
    )


def _texts(tokenizer: "PreTrainedTokenizerBase", ids: list[int]) -> dict[int, str]:
    """What each token adds to a text; some tokenizers drop the space before the first token of one."""
    anchor = list(tokenizer("a", add_special_tokens=False)["input_ids"][-1:])  # empty where it knows no letters
    alone, *after = tokenizer.batch_decode(
        [anchor, *([*anchor, token] for token in ids)],
        skip_special_tokens=False,
        clean_up_tokenization_spaces=False,
    )
    return {token: text[len(alone) :] for token, text in zip(ids, after, strict=True)}


class Trigger(Protocol):
    """Decides about decode steps one after the other."""

    def fires(self, token: int) -> bool:
        """Whether the step that feeds `token`, the next of a text, is slow."""

    def refreshed(self) -> None:
        """The step just decided about is slow in any case."""


@dataclass
class Sentence:
    """At the start of a sentence, or when `interval` steps have passed since the last slow one.

    on: "start": the step that feeds the first token of a sentence; "end": the one that feeds the token that ended one.
    min_gap: of two starts closer together than this, in steps, the second is passed over, not put off. cooldown: after
    an end, so many tokens cannot be another one.

    Source: Slow-Fast Inference; "start" is the authors' code, "end" the paper's text.
    """

    boundaries: Boundaries
    interval: int
    min_gap: int
    cooldown: int
    on: Literal["start", "end"] = "start"
    before: int | None = None
    cooling: int = 0
    awaiting: bool = False
    since: int = 0

    def fires(self, token: int) -> bool:
        self.since += 1
        event = self._event(token)
        self.before = token
        if (event and self.since >= self.min_gap) or self.since >= self.interval:
            self.refreshed()
            return True
        return False

    def refreshed(self) -> None:
        self.since = 0

    def _event(self, token: int) -> bool:
        """Whether a sentence starts, or ends, with `token`."""
        ended = self.cooling == 0 and self.boundaries.end(self.before, token)
        if ended:
            self.cooling, self.awaiting = self.cooldown, True
        elif self.cooling > 0:
            self.cooling -= 1
        if self.on == "end":
            return ended
        if not self.awaiting or token in self.boundaries.enders or token in self.boundaries.skipped:
            return False
        self.awaiting, self.cooling = False, max(self.cooling, self.cooldown)
        return True


@dataclass
class Periodic:
    """Every `interval` steps."""

    interval: int
    step: int = 0

    def fires(self, token: int) -> bool:
        self.step += 1
        return self.step % self.interval == 0

    def refreshed(self) -> None:
        """The period goes on."""


@dataclass
class Chance:
    """Each step with probability 1 / interval."""

    interval: int
    generator: random.Random

    def fires(self, token: int) -> bool:
        return self.generator.random() * self.interval < 1

    def refreshed(self) -> None:
        """The next step knows nothing of this one."""


@dataclass
class Never:
    """No step."""

    def fires(self, token: int) -> bool:
        return False

    def refreshed(self) -> None:
        """There is nothing to count."""
