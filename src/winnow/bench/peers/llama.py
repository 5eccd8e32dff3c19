"""llama.cpp: `llama.cpp`, or `llama.cpp:flash` with its flash attention."""

from typing import Any

from winnow.bench.peers.spelling import Spelling
from winnow.errors import InputError


class LlamaCpp:
    """The same weights in a GGUF file, units in float16, on the CPU."""

    script = "llama_worker.py"
    gguf = True

    def options(self, spelling: Spelling) -> dict[str, Any]:
        if spelling.name not in (None, "flash") or spelling.values or spelling.parameters:
            raise InputError(f"peer {spelling.text!r} is unknown; write 'llama.cpp' or 'llama.cpp:flash'")
        return {"flash": spelling.name == "flash"}
