"""What a comparison knows of an arm before it runs, and of a family of peers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from winnow.evaluation.peers.spelling import Spelling

WORKERS = Path(__file__).parent / "workers"

# What an arm loads. Any other name is a format that llama.cpp makes of the GGUF file.
SOURCE = "source"  # what the user gave Winnow, where that is a GGUF file; else the directory
DIRECTORY = "directory"  # the dense weights as `save_pretrained` writes them
GGUF = "gguf"  # the user's own GGUF file, or one written from the loaded weights


@dataclass(frozen=True)
class Arm:
    """One process of a comparison.

    label: what tables call it. python, script: what runs it. options: of the worker's check, beside threads and device.
    loads: `SOURCE`, `DIRECTORY`, `GGUF`, or a format made of the latter.
    """

    label: str
    python: str
    script: Path
    options: dict[str, Any]
    loads: str = DIRECTORY

    @property
    def family(self) -> str:
        return self.label.partition(":")[0]


class Peer(Protocol):
    """A family of peers. script: its worker's file.

    on_file: the spellings that its bare name stands for where the model comes from a GGUF file; none: itself.
    loads: as in `Arm`. options: what a spelling asks for, as the worker's options; raises InputError where the family
    has no such thing.
    """

    script: str
    on_file: tuple[str, ...]

    def loads(self, spelling: Spelling) -> str: ...
    def options(self, spelling: Spelling) -> dict[str, Any]: ...
