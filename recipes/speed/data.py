"""Conversations to learn from, as chat JSONL: long contexts with hidden facts, many questions about each."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

from recipes.needle.conversations import Conversation, draw_conversation
from recipes.needle.corpus import read_documents
from rich.progress import track
from transformers import PreTrainedTokenizerBase

from winnow.tasks.haystack import Haystack

CHARACTERS = 20_000_000  # of text read; a conversation needs thousands
SHORT = 200  # characters that a text to hide facts in has at least, in hundreds
LENGTHS = ((1024, 0.25), (2048, 0.35), (4096, 0.4))  # tokens at most, and the share of conversations


def write_data(
    corpus: Path,
    out: Path,
    tokenizer: PreTrainedTokenizerBase,
    *,
    conversations: int,
    seed: int,
    wanted: Callable[[Conversation], bool] = lambda said: True,
) -> None:
    """Write `conversations` lines of {"messages": [...]} to `out` unless it is there; the same seed writes the same.

    corpus: holds books.txt.xz, documents separated by <|endoftext|>. None of the evaluation's text is in it. wanted:
    others are drawn in place of conversations that are not.
    """
    if out.exists():
        return
    texts = [text for text in read_documents(corpus / "books.txt.xz", CHARACTERS) if len(text) > 100 * SHORT]
    haystacks = [Haystack.from_text(text[:100_000]) for text in texts]
    vocabulary = sorted({word for text in texts for word in re.findall(r"\b[a-z]{3,12}\b", text[:30_000])})
    lengths, shares = zip(*LENGTHS, strict=True)
    lines = []
    for index in track(range(conversations), "writing conversations"):
        rng = random.Random(f"{seed}/{index}")
        tokens = rng.randint(512, int(rng.choices(lengths, shares)[0]))
        said = draw_conversation(rng, tokens, rng.choice(haystacks), tokenizer, vocabulary, keys=0.15)
        while not wanted(said):
            said = draw_conversation(rng, tokens, rng.choice(haystacks), tokenizer, vocabulary, keys=0.15)
        lines.append(_line(said))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(lines), encoding="utf-8")


def _line(said: Conversation) -> str:
    messages = []
    for index, turn in enumerate(said.turns):
        question = f"{said.context}\n\n{turn.question}" if index == 0 else turn.question
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": turn.reply}]
    return json.dumps({"messages": messages}) + "\n"
