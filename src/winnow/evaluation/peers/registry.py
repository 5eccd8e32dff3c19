"""The families of peers by name, and arms from what was typed."""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence

from winnow.errors import InputError
from winnow.evaluation.peers.base import SOURCE, WORKERS, Arm, Peer
from winnow.evaluation.peers.hf import Hf
from winnow.evaluation.peers.kvpress import Kvpress
from winnow.evaluation.peers.llama import LlamaCpp
from winnow.evaluation.peers.spelling import parse_peer
from winnow.plan import Plan

PEERS: dict[str, Peer] = {"hf": Hf(), "kvpress": Kvpress(), "llama.cpp": LlamaCpp()}


def peer_arms(texts: Sequence[str], pythons: Mapping[str, str], *, on_file: bool = False) -> list[Arm]:
    """An arm per peer, each once. pythons: family -> the Python that has it; else the one that runs Winnow.

    on_file: the model comes from a GGUF file, of which a family's bare name may stand for several arms.
    Raises InputError where a family, an option of it or a Python is unknown.
    """
    for family, python in pythons.items():
        _known(family)
        if shutil.which(python) is None:
            raise InputError(f"--peer-python {family}={python}: there is no such program")
    wanted = [each for text in texts for each in ((on_file and _on_file(text)) or [text])]
    arms = []
    for spelling in map(parse_peer, dict.fromkeys(wanted)):
        peer = _known(spelling.family)
        python = pythons.get(spelling.family, sys.executable)
        script, loads, options = WORKERS / peer.script, peer.loads(spelling), peer.options(spelling)
        try:
            json.dumps(options)  # as the worker is told them
        except TypeError as error:
            raise InputError(f"peer {spelling.text!r}: {spelling.family} takes numbers and texts alone") from error
        arms.append(Arm(spelling.text, python, script, options, loads))
    return arms


def plan_arms(plans: Sequence[Plan], prefill_chunk: int, weights: str = "auto", note: str = "") -> list[Arm]:
    """Winnow's own arms. weights: as in `LLM`; note: follows the plan in the label."""
    script, options = WORKERS / "winnow_worker.py", {"prefill_chunk": prefill_chunk, "weights": weights}
    return [Arm(f"{plan}{note}", sys.executable, script, {"plan": str(plan), **options}, SOURCE) for plan in plans]


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


def _on_file(text: str) -> tuple[str, ...]:
    peer = PEERS.get(text.strip())
    return peer.on_file if peer else ()
