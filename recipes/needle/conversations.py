"""Generated conversations about a long context: what the model learns retrieval from.

The wordings of `winnow.tasks` come first in each list and most often; the others keep the model from leaning on one.
A conversation asks many questions about one context, so supervision is dense; about a fifth ask just one, as an
evaluation does.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from winnow.tasks import kv, line_retrieval, multi_needle, number, passkey, variables
from winnow.tasks.haystack import Haystack
from winnow.tasks.words import ADJECTIVES, CITIES, NAMES, NOUNS

FAMILIES = ("passkey", "number", "multi", "variables", "kv", "kv_hex", "kv_uuid", "lines")
SHARES = (10, 20, 18, 10, 32, 3, 2, 5)
TEXT_FAMILIES = 4  # the first four hide sentences in a haystack, the others fill the context with records


@dataclass(frozen=True)
class Turn:
    """One question, the answer to train on, and where its (first) needle stands, 0 .. 1."""

    family: str
    question: str
    reply: str
    depth: float


@dataclass(frozen=True)
class Conversation:
    """A context and the questions about it."""

    context: str
    turns: tuple[Turn, ...]
    is_text: bool  # the context is prose that a language model can learn from


@dataclass(frozen=True)
class Fact:
    """Sentences to hide, in this order, and the question they answer."""

    family: str
    sentences: tuple[str, ...]
    question: str
    reply: str
    group: tuple[str, str] | None = None  # name and code, for questions about several facts


def draw_conversation(
    rng: random.Random,
    tokens: int,
    haystack: Haystack,
    tokenizer: PreTrainedTokenizerBase,
    vocabulary: Sequence[str] = (),
    keys: float = 0.0,
) -> Conversation:
    """A conversation of about `tokens` tokens, questions and answers included.

    `vocabulary`: words for keys of records besides the short lists of `winnow.tasks.words`. `keys`: share of key-value
    conversations besides those of the mixture.
    """
    family = "kv" if rng.random() < keys else rng.choices(FAMILIES, SHARES)[0]
    questions = 1 if rng.random() < 0.15 else rng.randint(2, max(3, min(32, tokens // 48)))
    if FAMILIES.index(family) < TEXT_FAMILIES:
        return _about_text(rng, tokens, haystack, tokenizer, family, questions)
    return _about_records(rng, tokens, tokenizer, family, questions, vocabulary)


def _about_text(
    rng: random.Random, tokens: int, haystack: Haystack, tokenizer: PreTrainedTokenizerBase, family: str, questions: int
) -> Conversation:
    needles = max(questions, rng.randint(1, max(1, min(16, tokens // 100))))
    kinds = [family] * max(1, needles // 2)
    kinds += rng.choices(FAMILIES[:TEXT_FAMILIES], SHARES[:TEXT_FAMILIES], k=needles - len(kinds))
    facts = _draw_facts(rng, kinds, hops_room=tokens // 64)
    asked = [0, *rng.sample(range(1, len(facts)), min(questions, len(facts)) - 1)]
    turns = [facts[i] for i in asked]
    groups = [fact.group for fact in facts if fact.group]
    hidden = [(_depth(rng), i) for i, fact in enumerate(facts) for _ in fact.sentences]
    written = sum(len(s) for fact in facts for s in fact.sentences) + sum(len(f.question + f.reply) for f in turns)
    # Questions about several codes are longer than the ones counted so far.
    several = 60 * len(turns) if len(groups) > 1 and family == "multi" else 0
    room = max(8, tokens - int(written / 2.2) - 8 * len(turns) - several)  # they take about 2.2 characters a token
    sentences, _ = haystack.run(rng, room, tokenizer)
    context, places = _hide(rng, sentences, facts, hidden)
    made: list[Turn] = []
    for fact in turns:
        if fact.group and len(groups) > 1 and rng.random() < 0.75:
            made.append(_several(rng, fact.group, groups, facts, places))
        else:
            made.append(Turn(fact.family, fact.question, fact.reply, places[fact.sentences[0]]))
    return Conversation(context, tuple(made), True)


def _depth(rng: random.Random) -> float:
    """A place for a needle, 0 .. 1. A fifth stand at the edges: the start of a long text is what is learned last."""
    kind = rng.random()
    if kind < 0.15:
        return rng.random() * 0.02
    return 1.0 if kind < 0.2 else rng.random()


def _several(
    rng: random.Random,
    first: tuple[str, str],
    groups: list[tuple[str, str]],
    facts: list[Fact],
    places: dict[str, float],
) -> Turn:
    """One question about several codes, in any order."""
    others = [group for group in groups if group != first]
    chosen = [first, *rng.sample(others, min(len(others), rng.randint(1, 5)))]
    rng.shuffle(chosen)
    sentences = [multi_needle.sentence(*group) for group in chosen]
    names = [name for name, _ in chosen]
    wording = multi_needle.question(names)
    if rng.random() < 0.2:
        wording = f"Give the secret codes of {', '.join(names)}."
    return Turn("multi", wording, " ".join(sentences), places[sentences[0]])


def _draw_facts(rng: random.Random, kinds: list[str], hops_room: int) -> list[Fact]:
    cities, names = rng.sample(CITIES, len(CITIES)), rng.sample(NAMES, len(NAMES))
    keyed = kv.draw_pairs(rng, len(kinds))
    variable_names = variables.draw_names(rng, 6 * len(kinds))
    facts: list[Fact] = []
    for i, kind in enumerate(kinds):
        if kind == "passkey":
            first = not any(fact.family == "passkey" for fact in facts)
            facts.append(_passkey(rng, None if first else keyed[i][0]))
        elif kind == "number":
            facts.append(_number(rng, cities.pop() if cities else keyed[i][0]))
        elif kind == "multi":
            name, code = names.pop(), str(rng.randrange(10000, 100000))
            said = multi_needle.sentence(name, code)
            question = multi_needle.question([name]) if rng.random() < 0.5 else f"What is the secret code of {name}?"
            facts.append(Fact("multi", (said,), question, said, (name, code)))
        else:
            chain = [variable_names.pop() for _ in range(rng.randint(1, max(1, min(5, hops_room))))]
            value = str(rng.randrange(10000, 100000))
            reply = variables.reply(chain, value)
            facts.append(Fact("variables", tuple(variables.chain(chain, value)), variables.question(value), reply))
    return facts


def _passkey(rng: random.Random, owner: str | None) -> Fact:
    key = str(rng.randrange(10000, 100000))
    if owner is not None:
        said = f"The pass key of {owner} is {key}."
        return Fact("passkey", (said,), f"What is the pass key of {owner}?", said)
    wordings = (passkey.sentence(key), f"The pass key is {key}.", f"Remember: the pass key is {key}.")
    questions = (passkey.QUESTION, "What is the pass key in the text above?", "Tell me the pass key.")
    said, question = _first_mostly(rng, wordings), _first_mostly(rng, questions)
    return Fact("passkey", (said,), question, passkey.reply(key))


def _number(rng: random.Random, owner: str) -> Fact:
    digits = number.DIGITS if rng.random() < 0.7 else rng.randint(4, 12)
    value = number.draw_number(rng, digits)
    if rng.random() < 0.25:  # few different digits: repeats are where copying slips
        few = rng.sample("123456789", rng.randint(2, 4))
        value = "".join(rng.choice(few) for _ in value)
    if rng.random() < 0.75:
        return Fact("number", (number.sentence(owner, value),), number.question(owner), number.sentence(owner, value))
    thing = rng.choice(("phone number", "code", "account number", "ticket number", "secret number"))
    said = f"The {thing} of {owner} is {value}."
    return Fact("number", (said,), f"What is the {thing} of {owner}?", said)


def _hide(
    rng: random.Random, sentences: list[str], facts: list[Fact], hidden: list[tuple[float, int]]
) -> tuple[str, dict[str, float]]:
    """The context with the sentences of each fact in order, and where each sentence stands."""
    depths: dict[int, list[float]] = {}
    for depth, fact in sorted(hidden):
        depths.setdefault(fact, []).append(depth)
    at: dict[int, list[str]] = {}
    for fact_index, places in depths.items():
        for depth, said in zip(places, facts[fact_index].sentences, strict=True):
            at.setdefault(round(depth * len(sentences)), []).append(said)
    pieces: list[str] = []
    where: dict[str, float] = {}
    for border in range(len(sentences) + 1):
        for said in at.get(border, ()):
            where[said] = border / max(1, len(sentences))
            pieces.append(said + " ")
        pieces += sentences[border : border + 1]
    return "".join(pieces).rstrip(), where


def _about_records(
    rng: random.Random,
    tokens: int,
    tokenizer: PreTrainedTokenizerBase,
    family: str,
    questions: int,
    vocabulary: Sequence[str],
) -> Conversation:
    record, question, draw, join = _RECORDS[family](rng, vocabulary)
    sample = join([draw() for _ in range(16)])
    per_record = len(tokenizer(sample, add_special_tokens=False)["input_ids"]) / 16
    questions = min(questions, max(1, int(tokens / per_record / 4)))
    turn_tokens = len(tokenizer(question("able-acre") + record("able-acre", "12345"))["input_ids"]) + 4 + per_record
    count = max(2, int((tokens - questions * turn_tokens) / (1.02 * per_record)))
    records: dict[str, str] = {}
    while len(records) < count:
        records.update([draw()])
    pairs = list(records.items())
    turns = []
    asked = dict.fromkeys(round(_depth(rng) * (count - 1)) for _ in range(questions))
    for index in asked:
        key, value = pairs[index]
        turns.append(Turn(family, question(key), record(key, value), index / max(1, count - 1)))
    return Conversation(join(pairs), tuple(turns), False)


Draw = Callable[[], tuple[str, str]]
Records = tuple[Callable[[str, str], str], Callable[[str], str], Draw, Callable[[list[tuple[str, str]]], str]]


def _keys(rng: random.Random, vocabulary: Sequence[str], rare: float) -> Callable[[], str]:
    """Two-word keys; a share `rare` of the conversations takes both words from `vocabulary`."""
    if vocabulary and rng.random() < rare:
        return lambda: f"{rng.choice(vocabulary)}-{rng.choice(vocabulary)}"
    return lambda: f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}"


def _digits(rng: random.Random, digits: int) -> str:
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


def _json_question(rng: random.Random) -> Callable[[str], str]:
    plain = rng.random() < 0.2
    return (lambda key: f'What is the value of "{key}"?') if plain else kv.question


def _word_pairs(rng: random.Random, vocabulary: Sequence[str]) -> Records:
    key = _keys(rng, vocabulary, 0.2)
    digits = 5 if rng.random() < 0.8 else rng.randint(3, 8)
    return kv.pair, _json_question(rng), lambda: (key(), _digits(rng, digits)), kv.json_object


def _hex_pairs(rng: random.Random, _: Sequence[str]) -> Records:
    return kv.pair, _json_question(rng), lambda: (f"{rng.getrandbits(32):08x}", _digits(rng, 5)), kv.json_object


def _uuid_pairs(rng: random.Random, _: Sequence[str]) -> Records:
    def draw() -> tuple[str, str]:
        return tuple(str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(2))  # type: ignore[return-value]

    return kv.pair, _json_question(rng), draw, kv.json_object


def _lines(rng: random.Random, vocabulary: Sequence[str]) -> Records:
    key = _keys(rng, vocabulary, 0.7)
    introduction = line_retrieval.INTRODUCTION if rng.random() < 0.7 else ""

    def join(pairs: list[tuple[str, str]]) -> str:
        return introduction + "\n".join(line_retrieval.line(*pair) for pair in pairs)

    def draw() -> tuple[str, str]:
        return key(), str(rng.randint(1, 50000))

    return line_retrieval.line, line_retrieval.question, draw, join


_RECORDS: dict[str, Callable[[random.Random, Sequence[str]], Records]] = {
    "kv": _word_pairs,
    "kv_hex": _hex_pairs,
    "kv_uuid": _uuid_pairs,
    "lines": _lines,
}


def _first_mostly(rng: random.Random, choices: tuple[str, ...]) -> str:
    return choices[0] if rng.random() < 0.6 else rng.choice(choices[1:])
