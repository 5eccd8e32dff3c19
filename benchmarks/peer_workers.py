"""Peers that are asked for more than answers: steps after filled caches, given texts, logits."""

from dataclasses import replace
from pathlib import Path

from winnow.evaluation.peers import base

WORKERS = Path(__file__).parent / "workers"


def asked_more(arm: base.Arm) -> base.Arm:
    """The same arm, run by a worker that also takes the requests of `workers/timing.py`."""
    return replace(arm, script=WORKERS / f"timed_{arm.script.name}") if arm.script.parent == base.WORKERS else arm
