"""How a peer is written: `hf`, `hf:quantized(nbits=4)`, `kvpress:AdaKVPress(SnapKVPress(0.75))`, `llama.cpp:flash`."""

import ast
from dataclasses import dataclass
from typing import Any

from winnow.errors import InputError


@dataclass(frozen=True)
class Spelling:
    """A family, and what is asked of it: a name with values, or nothing (name None).

    values, parameters: literals, and the spellings of calls among them.
    """

    text: str
    family: str
    name: str | None
    values: tuple[Any, ...]
    parameters: dict[str, Any]


def parse_peer(text: str) -> Spelling:
    """Raises InputError where `text` is not FAMILY, FAMILY:NAME or FAMILY:NAME(literals and calls of literals)."""
    family, colon, rest = text.strip().partition(":")
    if not colon:
        return Spelling(text.strip(), family, None, (), {})
    try:
        name, values, parameters = _call(family, ast.parse(rest.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise InputError(f"peer {text!r} cannot be read; write it like 'kvpress:SnapKVPress(0.75)'") from error
    return Spelling(text.strip(), family, name, values, parameters)


def _call(family: str, node: ast.expr) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Its name, values and parameters. Raises ValueError where it is neither a name nor a call of one."""
    called = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    if not isinstance(called.func, ast.Name):
        raise ValueError
    if any(each.arg is None for each in called.keywords):
        raise ValueError
    values = tuple(_value(family, each) for each in called.args)
    return called.func.id, values, {str(each.arg): _value(family, each.value) for each in called.keywords}


def _value(family: str, node: ast.expr) -> Any:
    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    return Spelling(ast.unparse(node), family, *_call(family, node))
