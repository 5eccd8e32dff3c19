"""Long text to hide needles in: the bundled public-domain books, or the user's own files."""

import bisect
import itertools
import lzma
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from winnow.errors import InputError
from winnow.tasks.rows import existing_directory, read_rows

_UNIT = re.compile(r"\S.*?(?:[.!?][\"'”’)\]_*]*\s+|\n\s*\n|\Z)", re.DOTALL)
_PROBE = 64  # sentences tokenised to learn how many tokens a character is


@dataclass(frozen=True)
class Haystack:
    """Text cut into sentences; each keeps the white space after it, so joining them gives the text back."""

    sentences: tuple[str, ...]

    @classmethod
    def from_text(cls, text: str) -> "Haystack":
        sentences = tuple(_UNIT.findall(text.strip() + "\n\n"))
        if not sentences:
            raise InputError("the haystack text is empty; give text with at least one sentence")
        return cls(sentences)

    def run(self, rng: random.Random, tokens: int, tokenizer: PreTrainedTokenizerBase) -> tuple[list[str], list[int]]:
        """Consecutive sentences from a random start, at least `tokens` tokens when they are tokenised one by one.

        Returns the sentences and the token count of each. The text starts again at its end when it is too short.
        """
        start = rng.randrange(len(self.sentences))
        endless = itertools.cycle(itertools.chain(self.sentences[start:], self.sentences[:start]))
        probe = list(itertools.islice(endless, _PROBE if tokens > 2000 else 12))
        counts = _token_counts(probe, tokenizer)
        while sum(counts) < tokens:
            missing = int(1.05 * (tokens - sum(counts)) / (sum(counts) / len(counts))) + 4
            more = list(itertools.islice(endless, missing))
            probe, counts = probe + more, counts + _token_counts(more, tokenizer)
        end = bisect.bisect_left(list(itertools.accumulate(counts)), tokens) + 1
        return probe[:end], counts[:end]


@cache
def bundled_haystack() -> Haystack:
    """Four public-domain books that ship with the package and were not part of the bundled model's training."""
    raw = resources.files("winnow").joinpath("assets/haystack.txt.xz").read_bytes()
    return Haystack.from_text(lzma.decompress(raw).decode("utf-8").replace("<|endoftext|>", "\n\n"))


@cache
def haystack_from_directory(directory: str | Path) -> Haystack:
    """Every text of `*.jsonl.gz` (field `text`), `*.txt` and `*.txt.xz` in `directory`, in the order of the file names.

    Raises:
        InputError: the directory is missing or holds no such file, or a record has no `text`.
    """
    folder = existing_directory(directory)
    texts: list[str] = []
    for path in sorted(folder.iterdir()):
        try:
            if path.name.endswith(".jsonl.gz"):
                texts += [row["text"] for row in read_rows(path)]
            elif path.name.endswith(".txt"):
                texts.append(path.read_text(encoding="utf-8"))
            elif path.name.endswith(".txt.xz"):
                texts.append(lzma.decompress(path.read_bytes()).decode("utf-8"))
        except (UnicodeDecodeError, lzma.LZMAError) as error:
            raise InputError(f"{path} cannot be read as UTF-8 text: {error}") from error
    if not texts:
        raise InputError(f"{folder} holds no text; expected *.jsonl.gz with a field 'text', *.txt or *.txt.xz")
    return Haystack.from_text("\n\n".join(texts))


def resolve_haystack(haystack: Haystack | str | Path | None) -> Haystack:
    """A haystack as it is, the one of a directory, or the bundled one for None."""
    if haystack is None:
        return bundled_haystack()
    return haystack if isinstance(haystack, Haystack) else haystack_from_directory(haystack)


def _token_counts(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return [len(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]
