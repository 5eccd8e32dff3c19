"""A task of random digits for the byte-level tokenizer, of any length from 32 tokens on."""

from dataclasses import dataclass

from winnow.tasks import Example


@dataclass(frozen=True)
class Digits:
    """A prompt of random digits; the answer counts as right if it has an even number of characters."""

    name: str = "digits"

    def example(self, rng, *, tokens, tokenizer, depth=None):
        # One token per byte: 17 of the template, a blank line, and the question.
        context = "".join(rng.choices("0123456789", k=tokens - 17 - 2 - 4))
        return Example(context, "Sum?", "", ("7",), (rng.random(),), 4 + rng.randrange(4))

    def score(self, example, text):
        return float(len(text) % 2 == 0)
