"""kvpress, whose presses compress the cache of a prompt: `kvpress:SnapKVPress(0.75)`, also one around another.

A press's first value is the share of units that goes. The whole prompt is compressed, its question included; kvpress's
own pipeline compresses what stands before the question.
"""

from typing import Any

from winnow.errors import InputError
from winnow.evaluation.peers.base import DIRECTORY
from winnow.evaluation.peers.spelling import Spelling


class Kvpress:
    """It pins another transformers than Winnow's, so it usually runs in an environment of its own."""

    script = "kvpress_worker.py"
    on_file: tuple[str, ...] = ()

    def loads(self, spelling: Spelling) -> str:
        return DIRECTORY

    def options(self, spelling: Spelling) -> dict[str, Any]:
        if spelling.name is None:
            raise InputError(f"peer {spelling.text!r} names no press; write it like 'kvpress:SnapKVPress(0.75)'")
        return _told(spelling)


def _told(spelling: Spelling) -> dict[str, Any]:
    """As its worker makes it: presses among the values are told alike."""
    parameters = {name: _value(each) for name, each in spelling.parameters.items()}
    return {"press": spelling.name, "values": [_value(each) for each in spelling.values], "parameters": parameters}


def _value(given: Any) -> Any:
    return _told(given) if isinstance(given, Spelling) else given
