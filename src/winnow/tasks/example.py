"""What a task makes: one long prompt, the strings its answer must hold, and where they stand in the text."""

import random
import re
from dataclasses import dataclass
from typing import Protocol

from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Example:
    """One question about one long context."""

    context: str
    question: str
    reply: str  # an answer in the wanted form, after its opening: the training target, never shown in an evaluation
    answers: tuple[str, ...]  # every string the output must hold
    depths: tuple[float, ...]  # where the needle of each answer stands, 0 (start of the context) .. 1 (end)
    max_tokens: int  # enough new tokens for `reply` and the end of the turn
    references: tuple[str, ...] = ()  # right answers of tasks that accept any of several, or score by closeness
    opening: str = ""  # how the answer begins, which the model is given after the prompt
    chat: bool = True  # whether the prompt is a user's message where there is a chat template; else it is plain text
    options: tuple[str, ...] = ()  # answers to choose among, by their likelihood; none: any text

    @property
    def prompt(self) -> str:
        """The user message: the context, a blank line, the question."""
        return f"{self.context}\n\n{self.question}"


class Task(Protocol):
    """A seeded source of examples and their exact scoring."""

    @property
    def name(self) -> str:
        """The task's name in the registry."""
        ...

    def example(
        self, rng: random.Random, *, tokens: int, tokenizer: PreTrainedTokenizerBase, depth: float | None = None
    ) -> Example:
        """Build one example whose rendered prompt fills `tokens` tokens.

        Args:
            rng: the only source of chance; the same state gives the same example.
            tokens: length of the whole rendered prompt in tokens of `tokenizer`, chat template included. It is never
                exceeded; what is missing is at most 16 tokens where text fills the context, and less than one record
                where records do (key-value pairs, lines).
            depth: where the needle stands, 0 .. 1; drawn from `rng` if None. A task with several needles spreads them
                and ignores it.
        Raises:
            InputError: `tokens` is too small for the task; the message says the minimum.
        """
        ...

    def score(self, example: Example, text: str) -> float:
        """How good an answer `text` is, 0 .. 1: unless a task says otherwise, the share of its answers found in it."""
        return share_found(example, text)


def render(example: Example, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of the whole prompt: the chat template up to the assistant header, or the plain text without one.

    The answer's opening comes after that.
    """
    ids = render_text(example.prompt, tokenizer, chat=example.chat)
    if not example.opening:
        return ids
    space = "" if example.chat and tokenizer.chat_template else " "
    return [*ids, *tokenizer(space + example.opening, add_special_tokens=False)["input_ids"]]


def render_text(text: str, tokenizer: PreTrainedTokenizerBase, *, chat: bool = True) -> list[int]:
    """Like `render`, of a user message, or without `chat` of any text."""
    if chat and tokenizer.chat_template:
        message = [{"role": "user", "content": text}]
        whole = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        return list(tokenizer(whole, add_special_tokens=False, verbose=False)["input_ids"])
    return list(tokenizer(text, verbose=False)["input_ids"])


def found(answer: str, text: str) -> bool:
    """Whether `answer` stands in `text` as a whole: not inside a longer word, digit run or hyphenated name.

    Runs of white space count as one space on both sides, and case does not count, as in RULER's own score.
    """
    answer, text = " ".join(answer.split()), " ".join(text.split())
    return re.search(rf"(?<![\w-]){re.escape(answer)}(?![\w-])", text, re.IGNORECASE) is not None


def share_found(example: Example, text: str) -> float:
    """Share of the answers found in `text`; the score of every generated task."""
    return sum(found(answer, text) for answer in example.answers) / len(example.answers)
