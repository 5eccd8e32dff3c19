"""The families of peers by name, and arms from what was typed."""

import shutil
import sys
from collections.abc import Mapping, Sequence

from winnow.bench.peers.base import WORKERS, Arm, Peer
from winnow.bench.peers.hf import Hf
from winnow.bench.peers.kvpress import Kvpress
from winnow.bench.peers.llama import LlamaCpp
from winnow.bench.peers.spelling import parse_peer
from winnow.errors import InputError
from winnow.plan import Plan

PEERS: dict[str, Peer] = {"hf": Hf(), "kvpress": Kvpress(), "llama.cpp": LlamaCpp()}


def peer_arms(texts: Sequence[str], pythons: Mapping[str, str]) -> list[Arm]:
    """An arm per peer, each once. pythons: family -> the Python that has it; else the one that runs Winnow.

    Raises InputError where a family, an option of it or a Python is unknown.
    """
    for family, python in pythons.items():
        _known(family)
        if shutil.which(python) is None:
            raise InputError(f"--peer-python {family}={python}: there is no such program")
    arms = []
    for spelling in map(parse_peer, dict.fromkeys(texts)):
        peer = _known(spelling.family)
        python = pythons.get(spelling.family, sys.executable)
        arms.append(Arm(spelling.text, python, WORKERS / peer.script, peer.options(spelling), peer.gguf))
    return arms


def plan_arms(plans: Sequence[Plan], prefill_chunk: int) -> list[Arm]:
    """Winnow's own arms."""
    script = WORKERS / "winnow_worker.py"
    options = {"prefill_chunk": prefill_chunk}
    return [Arm(str(plan), sys.executable, script, {"plan": str(plan), **options}) for plan in plans]


def parse_pythons(texts: Sequence[str]) -> dict[str, str]:
    """`kvpress=PATH` -> {"kvpress": PATH}. Raises InputError where a text is not FAMILY=PATH."""
    found = {}
    for text in texts:
        family, equals, path = text.partition("=")
        if not (family and equals and path):
            raise InputError(f"--peer-python {text!r}: write it like kvpress=DIR/bin/python")
        found[family] = path
    return found


def _known(family: str) -> Peer:
    if family not in PEERS:
        raise InputError(f"peer {family!r} is unknown; known: {', '.join(PEERS)}")
    return PEERS[family]
