"""transformers with its own caches: `hf`, `hf:quantized(nbits=4)`, `hf:offloaded`."""

from typing import Any

from winnow.errors import InputError
from winnow.evaluation.peers.base import DIRECTORY
from winnow.evaluation.peers.spelling import Spelling

CACHES = ("quantized", "offloaded")
QUANTIZED = ("nbits", "backend", "axis_key", "axis_value", "q_group_size", "residual_length")


class Hf:
    """Stock `transformers`: SDPA attention, the prompt in one forward."""

    script = "hf_worker.py"
    on_file: tuple[str, ...] = ()

    def loads(self, spelling: Spelling) -> str:
        return DIRECTORY

    def options(self, spelling: Spelling) -> dict[str, Any]:
        if spelling.name is None:
            return {"cache": "dynamic", "parameters": {}}
        if spelling.name not in CACHES:
            raise InputError(f"peer {spelling.text!r}: hf has no cache {spelling.name!r}; it has {', '.join(CACHES)}")
        takes = QUANTIZED if spelling.name == "quantized" else ()
        wrong = [*map(repr, spelling.values), *(name for name in spelling.parameters if name not in takes)]
        if wrong:
            allowed = f"it takes {', '.join(takes)}, by name" if takes else "it takes none"
            raise InputError(f"peer {spelling.text!r}: {spelling.name} has no parameter {wrong[0]}; {allowed}")
        return {"cache": spelling.name, "parameters": spelling.parameters}
