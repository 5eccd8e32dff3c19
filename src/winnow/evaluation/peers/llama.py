"""llama.cpp: the GGUF file as it is, or its own fastest formats of it, without and with its flash attention.

`llama.cpp` is the file; on a GGUF file of the user's it stands for all of `ON_FILE`. `llama.cpp:flash`,
`llama.cpp:q4_0(flash=True)` and so on name one. `cache='q8_0'` or `cache='q4_0'` holds units in fewer bits, which it
can with flash attention only.
"""

from typing import Any

from winnow.errors import InputError
from winnow.evaluation.peers.base import GGUF
from winnow.evaluation.peers.spelling import Spelling

FAMILY = "llama.cpp"
FORMATS = ("q4_0", "bf16")  # it has its fastest kernels for these: the first decodes, the second prefills fastest
NAMES = (None, "file", "flash", *FORMATS)
CACHES = ("f16", "q8_0", "q4_0")
ON_FILE = tuple(f"{FAMILY}:{name}{flash}" for name in ("file", *FORMATS) for flash in ("", "(flash=True)"))


class LlamaCpp:
    """On the CPU."""

    script = "llama_worker.py"
    on_file = ON_FILE

    def loads(self, spelling: Spelling) -> str:
        return spelling.name if spelling.name in FORMATS else GGUF

    def options(self, spelling: Spelling) -> dict[str, Any]:
        given, named = spelling.parameters, spelling.name not in (None, "flash")
        flash = given.get("flash", spelling.name == "flash")
        wrong = spelling.name not in NAMES or spelling.values or set(given) - ({"flash", "cache"} if named else set())
        if wrong or not isinstance(flash, bool):
            known = ", ".join(repr(each) for each in (FAMILY, f"{FAMILY}:flash", *ON_FILE))
            raise InputError(f"peer {spelling.text!r} is unknown; llama.cpp is one of {known}")
        if (cache := given.get("cache", CACHES[0])) not in CACHES:
            raise InputError(f"peer {spelling.text!r}: cache is one of {', '.join(map(repr, CACHES))}")
        if cache != CACHES[0] and not flash:
            raise InputError(f"peer {spelling.text!r}: llama.cpp holds units in {cache} with flash=True only; give it")
        return {"flash": flash, "cache": cache}
