"""llama.cpp: the GGUF file as it is, or its own fastest formats of it, without and with its flash attention.

`llama.cpp` is the file; on a GGUF file of the user's it stands for all of `ON_FILE`. `llama.cpp:flash`,
`llama.cpp:q4_0(flash=True)` and so on name one.
"""

from typing import Any

from winnow.errors import InputError
from winnow.evaluation.peers.base import GGUF
from winnow.evaluation.peers.spelling import Spelling

FAMILY = "llama.cpp"
FORMATS = ("q4_0", "bf16")  # it has its fastest kernels for these: the first decodes, the second prefills fastest
NAMES = (None, "file", "flash", *FORMATS)
ON_FILE = tuple(f"{FAMILY}:{name}{flash}" for name in ("file", *FORMATS) for flash in ("", "(flash=True)"))


class LlamaCpp:
    """On the CPU, units in float16."""

    script = "llama_worker.py"
    on_file = ON_FILE

    def loads(self, spelling: Spelling) -> str:
        return spelling.name if spelling.name in FORMATS else GGUF

    def options(self, spelling: Spelling) -> dict[str, Any]:
        takes = {"flash"} if spelling.name not in (None, "flash") else set()
        flash = spelling.parameters.get("flash", spelling.name == "flash")
        wrong = spelling.name not in NAMES or spelling.values or set(spelling.parameters) - takes
        if wrong or not isinstance(flash, bool):
            known = ", ".join(repr(each) for each in (FAMILY, f"{FAMILY}:flash", *ON_FILE))
            raise InputError(f"peer {spelling.text!r} is unknown; llama.cpp is one of {known}")
        return {"flash": flash}
