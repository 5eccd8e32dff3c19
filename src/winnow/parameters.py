"""Types of parameters, checked against a dataclass's own annotations and spelt out for people."""

import dataclasses
import types
import typing
from typing import Any


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
