"""Parameters: their types, checked against a dataclass's own annotations and spelt out, and where they matter."""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Where:
    """Where a parameter changes anything. said: the settings, as one writes them; holds: whether a record has them."""

    said: str
    holds: Callable[[Any], bool]


def idle(record: Any, matters: Mapping[str, Where]) -> str | None:
    """What is wrong with the first field of a dataclass that is set where it changes nothing, or None.

    matters: of the fields that do not always change something. A field that has its default counts as not set.
    """
    for field in dataclasses.fields(record):
        value, where = getattr(record, field.name), matters.get(field.name)
        if where is not None and value != field.default and not where.holds(record):
            return f"{field.name}={value!r} changes nothing here: it needs {where.said}; leave it out"
    return None


def that_matter(kind: Any, matters: Mapping[str, Where], values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` of fields of the dataclass `kind` without those that change nothing beside the others."""
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    given = types.SimpleNamespace(**defaults | dict(values))
    return {name: value for name, value in values.items() if name not in matters or matters[name].holds(given)}


def wrong_type(record: Any) -> str | None:
    """What is wrong with the first field of a dataclass whose value does not have its annotated type, or None."""
    hints = typing.get_type_hints(type(record))
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if not _is_a(value, hints[field.name]):
            return f"{field.name}={value!r} must be {_spell(hints[field.name])}"
    return None


def _is_a(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_is_a(value, option) for option in typing.get_args(hint))
    if origin in (tuple, list):
        return isinstance(value, origin) and all(_is_a(item, typing.get_args(hint)[0]) for item in value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _spell(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(option) for option in typing.get_args(hint))
    if origin in (types.UnionType, typing.Union):
        return " or ".join(dict.fromkeys(_spell(option) for option in typing.get_args(hint)))
    if origin in (tuple, list):
        return f"a list of {_plural(typing.get_args(hint)[0])}"
    return {int: "a whole number", float: "a number", str: "a string", bool: "True or False", type(None): "None"}.get(
        hint, str(hint)
    )


def _plural(hint: Any) -> str:
    return {int: "whole numbers", float: "numbers", str: "strings"}.get(hint, str(hint))
