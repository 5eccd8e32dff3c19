"""How a peer is written: `hf`, `hf:quantized(nbits=4)`, `kvpress:SnapKVPress(0.75)`, `llama.cpp:flash`."""

import ast
import json
from dataclasses import dataclass
from typing import Any

from winnow.errors import InputError


@dataclass(frozen=True)
class Spelling:
    """A family, and what is asked of it: a name with literal values, or nothing (name None)."""

    text: str
    family: str
    name: str | None
    values: tuple[Any, ...]
    parameters: dict[str, Any]


def parse_peer(text: str) -> Spelling:
    """Raises InputError where `text` is not FAMILY, FAMILY:NAME or FAMILY:NAME(literals)."""
    family, colon, rest = text.strip().partition(":")
    if not colon:
        return Spelling(text.strip(), family, None, (), {})
    try:
        node = ast.parse(rest.strip(), mode="eval").body
        name = node.func if isinstance(node, ast.Call) else node
        if not isinstance(name, ast.Name):
            raise ValueError
        arguments, keywords = (node.args, node.keywords) if isinstance(node, ast.Call) else ([], [])
        values = tuple(map(ast.literal_eval, arguments))
        if any(each.arg is None for each in keywords):
            raise ValueError
        parameters = {str(each.arg): ast.literal_eval(each.value) for each in keywords}
        json.dumps([values, parameters])  # what cannot be told to a worker is a TypeError
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise InputError(f"peer {text!r} cannot be read; write it like 'kvpress:SnapKVPress(0.75)'") from error
    return Spelling(text.strip(), family, name.id, values, parameters)
