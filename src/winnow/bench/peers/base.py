"""What a comparison knows of an arm before it runs, and of a family of peers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from winnow.bench.peers.spelling import Spelling

WORKERS = Path(__file__).parent / "workers"


@dataclass(frozen=True)
class Arm:
    """One process of a comparison.

    label: what tables call it. python, script: what runs it. options: of the worker's check, beside threads and device.
    gguf: whether it loads a GGUF file and not a model directory.
    """

    label: str
    python: str
    script: Path
    options: dict[str, Any]
    gguf: bool = False


class Peer(Protocol):
    """A family of peers. script: its worker's file; gguf: as in `Arm`.

    options: what a spelling asks for, as the worker's options; raises InputError where the family has no such thing.
    """

    script: str
    gguf: bool

    def options(self, spelling: Spelling) -> dict[str, Any]: ...
