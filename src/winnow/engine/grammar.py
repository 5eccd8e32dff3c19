"""A JSON schema as what may come next: llguidance says which tokens go on with a text that the schema allows."""

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from winnow.errors import InputError, MissingExtraError

FATAL = -(2.0**63)
REFERENCES, PATTERNS = 512, 8  # of a schema, and below one allOf: what follows them grows too deep, or too fast
MULTIPLE = 100_000  # the most states of what says whether a number is a multiple: a second, and 50 MB
LOOKED = 100_000  # objects below all of a schema's allOf, with what they refer to
PARTS = ("allOf", "anyOf", "oneOf", "$ref")  # what holds besides what else an object of a schema says
PLACES = ("multipleOf", "properties", "patternProperties", "additionalProperties", "items", "prefixItems")
GAP = r"[ \n\t]{1,24}"  # between two parts of a document; without an end a model may go on with spaces for ever


class Grammar:
    """Where one text stands in a schema. matcher: llguidance's; vocab: of the model."""

    def __init__(self, matcher: Any, vocab: int) -> None:
        self._matcher, self._vocab = matcher, vocab

    def fork(self) -> "Grammar":
        """An independent copy, for a sample of its own."""
        return Grammar(self._matcher.deep_copy(), self._vocab)

    @property
    def done(self) -> bool:
        """Whether the text is whole and nothing may follow."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def allowed(self, stop: list[int]) -> Tensor:
        """Which tokens may come next, [vocab] bool. stop: those that end the text, which they may once it is whole."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        mask = torch.from_numpy(np.unpackbits(bits, bitorder="little")[: self._vocab]).bool()
        mask[stop] = bool(self._matcher.is_accepting())
        return mask

    def take(self, token: int) -> None:
        """Go on by a token that is allowed."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():  # such as a schema that takes more work in a step than it may
            raise InputError(f"json_schema: {_short(self._matcher.get_error())}")


class Grammars:
    """Makes grammars for a tokenizer. vocab: how many logits the model has."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, vocab: int) -> None:
        self._tokenizer, self._vocab = tokenizer, vocab

    def of(self, schema: str) -> Grammar:
        """What a JSON schema allows.

        Raises InputError where it is none or has what llguidance does not know, or where there is no fast tokenizer,
        MissingExtraError without llguidance.
        """
        told, matcher = self._told, _llguidance().LLMatcher
        with suppress(ValueError, RecursionError):  # of what is no JSON llguidance says more
            read = json.loads(schema, parse_int=_number, parse_float=_number)
            _check_size(read)
            _check_multiples(read)
        try:
            grammar = matcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": GAP})
        except ValueError as error:
            raise InputError(f"json_schema: {_short(str(error))}") from error
        made = matcher(told, grammar, log_level=0)
        if made.is_error():
            raise InputError(f"json_schema: {_short(made.get_error())}")
        return Grammar(made, self._vocab)

    @cached_property
    def _told(self) -> Any:
        """The tokenizer as llguidance wants it; it takes a second to make."""
        _llguidance()
        from llguidance.hf import from_tokenizer

        tokenizer: Any = self._tokenizer
        if tokenizer is None or not tokenizer.is_fast:
            raise InputError("json_schema needs a fast tokenizer, and the model has none")
        try:
            return from_tokenizer(tokenizer, n_vocab=max(self._vocab, len(tokenizer)))
        except ValueError as error:
            raise InputError(f"json_schema: llguidance cannot use the model's tokenizer: {error}") from error


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise MissingExtraError("json_schema needs llguidance; install winnow with its extra 'serve'") from error
    return llguidance


def _number(digits: str) -> float:
    """A number of a schema. Raises InputError for one that llguidance 1.9 ends the process with."""
    if float(digits) == FATAL:
        raise InputError(f"json_schema: {digits} is too near the least number of 64 bits; use another one")
    return float(digits)


def _check_size(schema: Any) -> None:
    """Raise InputError where llguidance 1.9 would follow more references than its stack takes, or has to satisfy so
    many patterns at once that time and memory double with each."""
    nodes = [*_nodes(schema)]
    if (count := sum(isinstance(node.get("$ref"), str) for node in nodes)) > REFERENCES:
        raise InputError(f"json_schema: {count} references are more than {REFERENCES}; write some of them out")
    looked = 0
    for parts in [parts for node in nodes if isinstance(parts := node.get("allOf"), list)]:
        inside = _followed(schema, parts)
        if (count := sum(isinstance(each.get("pattern"), str) for each in inside)) > PATTERNS:
            raise InputError(f"json_schema: {count} patterns in one allOf are more than {PATTERNS}; use fewer")
        if (looked := looked + len(inside)) > LOOKED:
            raise InputError(f"json_schema: its allOf hold more than {LOOKED} schemas, references followed; use fewer")


def _check_multiples(schema: Any) -> None:
    """Raise InputError where llguidance 1.9 would have to tell more remainders apart than it has memory for: of a
    number, or of several that may hold at once."""
    nodes = [*_nodes(schema)]
    if not any("multipleOf" in node for node in nodes):
        return
    looked = 0
    for node in nodes:
        inside = _followed(schema, node) if _joins(node) else [node]
        if math.lcm(*(_remainders(each.get("multipleOf")) for each in inside)) > MULTIPLE:
            raise InputError(
                f"json_schema: what its multipleOf ask for takes more than {MULTIPLE} states; use smaller or rounder "
                "ones"
            )
        if (looked := looked + len(inside)) > LOOKED:
            raise InputError(f"json_schema: beside multipleOf it joins more than {LOOKED} schemas; use fewer")


def _joins(node: dict[str, Any]) -> bool:
    """Whether what its parts say may have to hold of the same value, or of the same part of one."""
    said = node.keys() & {*PLACES, *PARTS}
    return "allOf" in said or (len(said) > 1 and not said.isdisjoint(PARTS))


def _followed(schema: Any, part: Any) -> list[dict[str, Any]]:
    """The objects in a part of a schema, and in what these refer to, each once."""
    inside, seen = [*_nodes(part)], set[str]()
    for each in inside:
        if isinstance(place := each.get("$ref"), str) and place not in seen:
            seen.add(place)
            inside += _nodes(_referred(schema, place))
    return inside


def _remainders(multiple: Any) -> int:
    """How many remainders there are to tell apart, digit by digit, where a number has to be a multiple: those of 2 and
    of 5 show in the last digits."""
    if not isinstance(multiple, float) or not math.isfinite(multiple) or multiple <= 0:
        return 1  # llguidance says what is wrong with it
    left = int("".join(map(str, Decimal(repr(multiple)).as_tuple().digits)))
    for factor in (2, 5):
        while left % factor == 0:
            left //= factor
    return left


def _nodes(part: Any) -> Iterator[dict[str, Any]]:
    """The objects in a part of a schema."""
    if isinstance(part, dict):
        yield part
    for inside in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _nodes(inside)


def _referred(schema: Any, place: str) -> Any:
    """What a reference within the schema stands for; None where it is none."""
    for name in place.removeprefix("#/").split("/"):
        key = name.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list):
            schema = schema[int(key)] if key.isdecimal() and int(key) < len(schema) else None
        else:
            schema = schema.get(key) if isinstance(schema, dict) else None
    return schema


def _short(message: str) -> str:
    """llguidance's words, but for an option of its own that nobody can set here."""
    said = " ".join(message.split()).replace(
        "Enable 'coerce_one_of' option to approximate oneOf with anyOf", "write anyOf"
    )
    return said[:300]
