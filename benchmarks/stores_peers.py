"""What people would use instead, held in fewer bits: their logits after the same prompts, their answers to the same."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.stores import Passage, Stored
from winnow.evaluation.evaluate import Progress, silent
from winnow.evaluation.fidelity import distance
from winnow.evaluation.peers.base import Arm
from winnow.evaluation.peers.compare import Workers


def first_of_family(arms: Sequence[Arm]) -> dict[str, str]:
    """By the label of each peer, that of the first of its family: what it is compared with, since its arithmetic and
    that of Winnow's full attention differ in more than in how units are held."""
    first: dict[str, str] = {}
    return {arm.label: first.setdefault(arm.family, arm.label) for arm in arms}


def measure_peers(
    workers: Workers,
    arms: Sequence[Arm],
    chosen: Sequence[Passage],
    lengths: Sequence[int],
    fed: int,
    scratch: Path,
    *,
    progress: Progress = silent,
) -> Iterator[list[Stored]]:
    """As `measure_stores`, of peers whose weights are loaded. scratch: a directory that takes logits, [fed, vocab]
    float32. Raises what `Workers.require` raises."""
    against = first_of_family(arms)
    for passage in chosen:
        for length in lengths:
            ids, found, full = passage.ids[-(length + fed) :], list[Stored](), dict[str, torch.Tensor]()
            for arm in arms:
                out = scratch / "logits.npy"
                told = workers.require(arm.label, "logits", ids=list(ids[:-1]), out=str(out), prompt=length)
                rows = torch.from_numpy(np.load(out)).log_softmax(-1)
                expected = full.setdefault(against[arm.label], rows)
                close = distance(arm.label, length, list(ids[length:]), expected, rows)
                found.append(Stored(passage, length, close, told["cache_bytes"], None, against[arm.label]))
                progress(length + fed)
            yield found
