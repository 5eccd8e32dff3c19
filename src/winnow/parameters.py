"""Parameters: their types and bounds, checked against a dataclass's own annotations, and where they matter."""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

from annotated_types import Ge, Gt, Interval, Le, Lt

from winnow.errors import InputError

Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]
Share = Annotated[float, Interval(gt=0, le=1)]
LARGEST = 2**62
BOUNDS = (Ge, Gt, Le, Lt, Interval)
WORDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


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
    """What is wrong with the first field of a dataclass whose value does not have its annotated type, or lies outside
    the bounds of the annotation (of annotated_types); None: nothing."""
    kind: Any = type(record)
    for name, (hint, bounds) in _hints(kind).items():
        value = getattr(record, name)
        if not _is_a(value, hint):
            return f"{name}={value!r} must be {_spell(hint)}"
        for limits in bounds:
            numbers = value if isinstance(value, (tuple, list)) else (value,)
            if not all(number is None or _within(number, limits) for number in numbers):
                shown = list(value) if isinstance(value, tuple) else value
                return f"{name}={shown!r} must be {_spell_limits(limits)}"
    return None


def too_large(record: Any) -> str | None:
    """What is wrong with the first field of a dataclass whose whole numbers no kernel can add others to, or None."""
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        numbers = value if isinstance(value, tuple) else (value,)
        if any(isinstance(number, int) and abs(number) > LARGEST for number in numbers):
            return f"{field.name}={value!r} is larger than any text; use at most {LARGEST}"
    return None


def check_whole(least: int = 1, **given: Any) -> None:
    """Raise InputError where one of the values is no whole number, or below `least`."""
    for name, value in given.items():
        if not _is_a(value, int) or value < least:
            raise InputError(f"{name}={value!r} must be a whole number of at least {least}")


@functools.cache
def _hints(kind: type) -> dict[str, tuple[Any, tuple[Interval, ...]]]:
    """Per field of a dataclass its type and bounds: Python reads annotations anew each time that it is asked."""
    hints, full = (typing.get_type_hints(kind, include_extras=extras) for extras in (False, True))
    return {field.name: (hints[field.name], (*_limits(full[field.name]),)) for field in dataclasses.fields(kind)}


def type_name(hint: Any) -> str:
    """A field's type as one reads it, bounds included."""
    limits = next(_limits(hint), None)
    plain = _spell(_stripped(hint))
    return plain if limits is None else f"{plain}, {_spell_limits(limits)}"


def _limits(hint: Any) -> Iterator[Interval]:
    """The bounds of a type, also inside unions and lists."""
    if typing.get_origin(hint) is Annotated:
        bounds = [bound for bound in hint.__metadata__ if isinstance(bound, (Ge, Gt, Le, Lt, Interval))]
        given = {
            name: getattr(bound, name) for bound in bounds for name in ("ge", "gt", "le", "lt") if hasattr(bound, name)
        }
        if given:
            yield Interval(**given)
    for inside in typing.get_args(hint):
        if not isinstance(inside, (str, int, float, *BOUNDS)):
            yield from _limits(inside)


def _within(number: float, limits: Interval) -> bool:
    low = (limits.ge is None or number >= limits.ge) and (limits.gt is None or number > limits.gt)  # type: ignore[operator]
    return low and (limits.le is None or number <= limits.le) and (limits.lt is None or number < limits.lt)  # type: ignore[operator]


def _spell_limits(limits: Interval) -> str:
    """ "at least 1", "above 0 and at most 1" """
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    return " and ".join(
        f"{word} {value}" for name, word in words.items() if (value := getattr(limits, name)) is not None
    )


def _stripped(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def _is_a(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_is_a(value, option) for option in typing.get_args(hint))
    if origin in (tuple, list):
        return isinstance(value, origin) and all(_is_a(item, typing.get_args(hint)[0]) for item in value)
    if origin is dict:
        kinds = typing.get_args(hint)
        return isinstance(value, dict) and all(all(map(_is_a, item, kinds)) for item in value.items())
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
    if origin is dict:
        return "a mapping of " + " to ".join(map(_plural, typing.get_args(hint)))
    return {int: "a whole number", float: "a number", str: "a string", bool: "True or False", type(None): "None"}.get(
        hint, str(hint)
    )


def _plural(hint: Any) -> str:
    return {int: "whole numbers", float: "numbers", str: "strings"}.get(hint, str(hint))
