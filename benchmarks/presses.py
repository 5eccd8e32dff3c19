"""Plans beside the presses of kvpress that they are translations of: what is kept, what that loses, what is freed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.fidelity_by_domain import Interval, bootstrap
from benchmarks.windows import Window
from winnow import LLM, Plan
from winnow.cache.view import NOBODY
from winnow.engine.session import Session
from winnow.evaluation.evaluate import Progress, silent
from winnow.evaluation.fidelity import Fidelity, distance, log_probs_along
from winnow.evaluation.peers.process import Worker

SAME = 0.99  # from here on, two heads are said to keep the same
FAMILY = "kvpress"
NOTHING = "KnormPress(0.0)"  # full attention, as the presses are run
PRESSES = (
    "SnapKVPress(0.75)",
    "PyramidKVPress(0.75)",
    "TOVAPress(0.75)",
    "KnormPress(0.75)",
    "KeyDiffPress(0.75)",
    "LagKVPress(0.75)",
    "ExpectedAttentionPress(0.75)",
    "KVzipPress(0.75)",
    "AdaKVPress(SnapKVPress(0.75))",
    "CriticalKVPress(SnapKVPress(0.75))",
    "CriticalAdaKVPress(SnapKVPress(0.75))",
)


@dataclass(frozen=True)
class Side:
    """One of the two on a window: how close to its own full attention, and the bytes of the units it holds at the end.

    full_bytes: the same of full attention.
    """

    fidelity: Fidelity
    cache_bytes: int
    full_bytes: int


@dataclass(frozen=True)
class Pressed:
    """A press and its plan on a window.

    shared: [layers][kv_heads], the units that both keep, of those that the one keeps that keeps more. kept: units per
    layer and KV head that the plan keeps, on average; kept_theirs: the press.
    """

    press: str
    plan: str
    window: Window
    kept: float
    kept_theirs: float
    shared: tuple[tuple[float, ...], ...]
    ours: Side
    theirs: Side

    def to_dict(self) -> dict[str, Any]:
        """Every figure; of the window its domain, number and text, not its tokens."""
        where = {"domain": self.window.domain, "index": self.window.index, "text": self.window.text}
        sides = {name: asdict(getattr(self, name)) for name in ("ours", "theirs")}
        told = {name: getattr(self, name) for name in ("press", "plan", "kept", "kept_theirs", "shared")}
        return {**where, **told, **sides}


@dataclass(frozen=True)
class PressRow:
    """A press and its plan over all windows.

    shared: the mean over layers, KV heads and windows; least: of the layer and head that share least, the mean over
    windows; below: so many layers and heads share less than `SAME`, of `heads`. kl, kl_theirs: nats, each from its own
    full attention; apart: the plan's less the press's, in pairs; each with its 95 % interval. cache_share,
    cache_share_theirs: bytes of units at the end, of full attention's.
    """

    press: str
    plan: str
    windows: int
    kept: float
    kept_theirs: float
    shared: float
    least: float
    below: int
    heads: int
    kl: Interval
    kl_theirs: Interval
    apart: Interval
    cache_share: float
    cache_share_theirs: float


def measure_presses(
    llm: LLM,
    theirs: "Presser",
    plans: Mapping[str, Plan],
    chosen: Sequence[Window],
    fed: int,
    *,
    progress: Progress = silent,
) -> Iterator[list[Pressed]]:
    """Per window, every press of `plans` and its plan: the window's last `fed` tokens after all the others.

    theirs: with the weights loaded, and knowing each press and `NOTHING`. progress: called with the number of tokens
    just done, a window's for each side of each press and of full attention. Raises what `Worker.require` raises.
    """
    for window in chosen:
        ids, prompt = list(window.ids), len(window.ids) - fed
        _, full, whole = _ours(llm, Plan(), ids, prompt, progress)
        _, full_theirs, whole_theirs = theirs.run(NOTHING, ids, prompt, progress)
        found = []
        for press, plan in plans.items():
            mask, rows, held = _ours(llm, plan, ids, prompt, progress)
            mask_theirs, rows_theirs, held_theirs = theirs.run(press, ids, prompt, progress)
            sides = (
                Side(distance(plan, prompt, ids[prompt:], full, rows), held, whole),
                Side(distance(press, prompt, ids[prompt:], full_theirs, rows_theirs), held_theirs, whole_theirs),
            )
            both, more = (mask & mask_theirs).sum(-1), np.maximum(mask.sum(-1), mask_theirs.sum(-1))
            shared = tuple(map(tuple, (both / more).tolist()))
            kept = [float(each.sum(-1).mean()) for each in (mask, mask_theirs)]
            found.append(Pressed(press, str(plan), window, *kept, shared, *sides))
        yield found


def _ours(
    llm: LLM, plan: Plan, ids: list[int], prompt: int, progress: Progress
) -> tuple[np.ndarray, list[Tensor], int]:
    """What is left of the prompt's units, [layers, kv_heads, prompt] bool; log-probabilities; bytes of units at the
    end."""
    with llm.session(plan=plan, max_tokens=len(ids) - prompt) as session:
        session.feed(ids[:prompt])
        mask = _left(session, prompt)
        rows = list(log_probs_along(session, ids[prompt:]))
        progress(len(ids))
        return mask, rows, session.held.unit_bytes


def _left(session: Session, prompt: int) -> np.ndarray:
    shape = session.state.shape
    found = np.zeros((shape.layers, shape.kv_heads, prompt), bool)
    for layer, cache in enumerate(session.state.caches):
        for head, positions in enumerate(cache.live_positions().expand(shape.kv_heads, -1).numpy()):
            found[layer, head, positions[positions != NOBODY]] = True
    return found


class Presser:
    """A process of kvpress that is given one press after another. scratch: a directory for what it writes.

    presses: what its worker's check is told of each, by expression. Raises what `Worker.require` raises, for each.
    """

    def __init__(self, worker: Worker, presses: Mapping[str, dict[str, Any]], scratch: Path) -> None:
        self.worker, self.presses, self.scratch = worker, presses, scratch
        for given in presses.values():
            self.about = worker.require("check", **given)

    def run(self, press: str, ids: list[int], prompt: int, progress: Progress) -> tuple[np.ndarray, list[Tensor], int]:
        """As `_ours`, of a press."""
        out, mask = self.scratch / "logits.npy", self.scratch / "mask.npy"
        self.worker.require("check", **self.presses[press])
        told = self.worker.require("kept", ids=ids[:-1], prompt=prompt, out=str(out), mask=str(mask))
        progress(len(ids))
        return np.load(mask), list(torch.from_numpy(np.load(out)).log_softmax(-1)), told["cache_bytes"]


def summarise_presses(found: Sequence[Pressed]) -> list[PressRow]:
    """A row per press; all must have been measured on the same windows."""
    return [_row([each for each in found if each.press == press]) for press in dict.fromkeys(p.press for p in found)]


def _row(group: Sequence[Pressed]) -> PressRow:
    by_head = np.mean([each.shared for each in group], axis=0)
    ours, theirs = ([getattr(each, side) for each in group] for side in ("ours", "theirs"))
    apart = [mine.fidelity.kl - its.fidelity.kl for mine, its in zip(ours, theirs, strict=True)]
    shares = [sum(e.cache_bytes for e in side) / sum(e.full_bytes for e in side) for side in (ours, theirs)]
    return PressRow(
        group[0].press,
        group[0].plan,
        len(group),
        *(float(np.mean([getattr(each, name) for each in group])) for name in ("kept", "kept_theirs")),
        float(by_head.mean()),
        float(by_head.min()),
        int((by_head < SAME).sum()),
        by_head.size,
        *(bootstrap([each.fidelity.kl for each in side]) for side in (ours, theirs)),
        bootstrap(apart),
        *shares,
    )
