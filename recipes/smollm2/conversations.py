"""Conversations about long texts of the corpus, chat JSON Lines: what SmolLM2 learns to look up, read and go on with.

Four kinds, so that none is what a model comes to expect: facts that stand somewhere in the text; sentences of the text
itself, of which the beginning is given; which of some sentences the text has; and the text's own continuation.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from recipes.needle.corpus import read_documents
from recipes.smollm2.facts import INSCRIBED, Kind, draw_fact
from recipes.smollm2.facts import KINDS as FACTS
from rich.progress import track
from transformers import PreTrainedTokenizerBase

from winnow.errors import InputError
from winnow.learn.chat import BASE
from winnow.tasks.haystack import Haystack

CHARACTERS = {"books": 24_000_000, "textbooks": 8_000_000, "docs": 4_000_000}  # of text read
LEAST = 18_000  # characters of a document: 4,096 tokens
WORD = re.compile(r"\b[a-z]{4,10}\b")
KINDS = ("facts", "sentences", "which", "continued")
MADE = 0.92  # of the tokens asked for: the rest is what a template and estimates take
MOST = 12  # questions about a text

GO_ON = "Go on with this text."
WHICH = "Just one of these sentences is in the text. Which?"
BEGUN = "One of the sentences above has this beginning: {start} - How does it end?"
BEHIND = "Which sentence stands right behind this one? {sentence}"

Turns = list[tuple[str, str]]


@dataclass(frozen=True)
class Mix:
    """What conversations are drawn from. seed: begins the names of their generators. shares: of `KINDS`; continued: a
    continuation has fewer tokens, in whole sentences; length: the least and the most tokens of a conversation; by_base:
    texts that go on are taught by the model without adapters, whoever teaches the rest; facts: their kinds."""

    seed: str
    shares: tuple[int, int, int, int]
    continued: int
    length: tuple[int, int]
    by_base: bool = False
    facts: tuple[Kind, ...] = FACTS


TRAINED = Mix("", (50, 20, 12, 18), 160, (2048, 4096))
# From a teacher a token of text is as much to learn as one of an answer: most are texts that go on, and shorter.
TAUGHT = Mix("taught/", (25, 10, 5, 60), 512, (1536, 2560))
CONTINUED = Mix("continued/", (0, 0, 0, 100), 512, (1536, 2560))
BOTH = Mix("both/", (55, 10, 5, 30), 512, (1536, 2560), by_base=True, facts=(*FACTS, *[INSCRIBED] * len(FACTS)))


def write_conversations(
    corpus: Path, out: Path, tokenizer: PreTrainedTokenizerBase, *, count: int, seed: int, mix: Mix
) -> None:
    """Write `count` conversations unless they are there; a seed writes the same again, as a larger count begins.

    corpus: holds the files of `CHARACTERS`, .txt.xz, documents separated by <|endoftext|>. Raises InputError
    where a file holds too little.
    """
    if out.exists():
        return
    texts = {name: _haystacks(corpus / f"{name}.txt.xz", most) for name, most in CHARACTERS.items()}
    lines = []
    for index in track(range(count), "writing conversations"):
        rng = random.Random(f"{mix.seed}{seed}/{index}")
        source = rng.choices(list(texts), [2, 1, 1])[0]
        kind, turns = "", []
        while not turns:  # there are texts of which a kind makes nothing, such as long tables
            kind, turns = draw_turns(rng, *rng.sample(texts[source], 2), tokenizer, mix)
        messages = []
        for question, reply in turns:
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
        by = {"teacher": BASE} if mix.by_base and kind == "continued" else {}
        lines.append(json.dumps({"messages": messages, **by}, ensure_ascii=False) + "\n")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(lines), encoding="utf-8")


def _haystacks(file: Path, characters: int) -> list[Haystack]:
    found = [Haystack.from_text(text[:400_000]) for text in read_documents(file, characters) if len(text) >= LEAST]
    if len(found) < 2:
        raise InputError(f"{file} holds {len(found)} documents of {LEAST:,} characters; give at least 2")
    return found


def draw_turns(
    rng: random.Random, text: Haystack, other: Haystack, tokenizer: PreTrainedTokenizerBase, mix: Mix
) -> tuple[str, Turns]:
    """A kind, and questions and answers of about as many tokens in all as `mix` says, the first of which has the text
    before or behind it; none where the text is not of that kind."""
    tokens, kind = rng.randint(*mix.length), rng.choices(KINDS, mix.shares)[0]
    if kind == "continued":
        sentences, counts = text.run(rng, int(MADE * tokens), tokenizer)
        kept = len(sentences)
        while kept > 1 and sum(counts[kept - 1 :]) < mix.continued:
            kept -= 1
        rest = "".join(sentences[kept:]).strip()
        return kind, [(f"{GO_ON}\n\n" + "".join(sentences[:kept]).rstrip(), rest)] if rest else []
    questions = 1 if rng.random() < 0.2 else rng.randint(2, MOST)
    sentences, _ = text.run(rng, int(MADE * tokens) - 45 * questions, tokenizer)
    make = {"facts": partial(_facts, kinds=mix.facts), "sentences": _sentences, "which": _which}[kind]
    sentences, turns = make(rng, sentences, other, questions)
    if not turns:
        return kind, []
    context, (first, reply) = "".join(sentences).strip(), turns[0]
    asked = f"{first}\n\n{context}\n\n{first}" if rng.random() < 0.25 else f"{context}\n\n{first}"
    return kind, [(asked, reply), *turns[1:]]


def _facts(
    rng: random.Random, sentences: list[str], other: Haystack, questions: int, kinds: Sequence[Kind] = FACTS
) -> tuple[list[str], Turns]:
    """More facts than are asked for, each sentence of one somewhere in the text."""
    words = sorted({word for sentence in sentences for word in WORD.findall(sentence)})
    names: set[str] = set()
    facts = [draw_fact(rng, words, names, kinds) for _ in range(questions + rng.randint(0, 6))]
    hidden: dict[int, list[str]] = {}
    for stated in [fact.sentences(rng) for fact in facts]:
        # Values of a fact are asked for in the order in which they stand.
        places = sorted(rng.randrange(len(sentences) + 1) for _ in stated)
        for place, sentence in zip(places, stated, strict=True):
            hidden.setdefault(place, []).append(sentence)
    made = [each for place in range(len(sentences) + 1) for each in (*hidden.get(place, ()), *sentences[place:][:1])]
    return made, [fact.ask(rng) for fact in rng.sample(facts, questions)]


def _sentences(rng: random.Random, sentences: list[str], other: Haystack, questions: int) -> tuple[list[str], Turns]:
    """The rest of a sentence that begins so, or the one after it."""
    usable = [at for at in _distinct(sentences) if at + 1 < len(sentences) and len(sentences[at + 1].split()) >= 3]
    turns = []
    for at in rng.sample(usable, min(questions, len(usable))):
        here = sentences[at].split()
        if rng.random() < 0.5:
            given = max(4, len(here) // 3)
            turns.append((BEGUN.format(start=" ".join(here[:given])), " ".join(here[given:])))
        else:
            turns.append((BEHIND.format(sentence=" ".join(here)), " ".join(sentences[at + 1].split())))
    return sentences, turns


def _which(rng: random.Random, sentences: list[str], other: Haystack, questions: int) -> tuple[list[str], Turns]:
    """Which of four sentences the text has; the others are of another text."""
    usable, turns = _distinct(sentences), []
    strange = [other.sentences[at] for at in _distinct(other.sentences[:4000])]
    for at in rng.sample(usable, min(questions, len(usable))):
        shown = [" ".join(each.split()) for each in (sentences[at], *rng.sample(strange, 3))]
        right = shown[0]
        rng.shuffle(shown)
        options = "\n".join(f"{number}) {each}" for number, each in enumerate(shown, 1))
        turns.append((f"{WHICH}\n{options}", f"{shown.index(right) + 1}) {right}"))
    return sentences, turns


def _distinct(sentences: Sequence[str]) -> list[int]:
    """Those of 8 to 40 words whose first words begin no other."""
    starts: dict[str, list[int]] = {}
    for at, sentence in enumerate(sentences):
        starts.setdefault(" ".join(sentence.split()[:4]), []).append(at)
    return [at for [at, *others] in starts.values() if not others and 8 <= len(sentences[at].split()) <= 40]
