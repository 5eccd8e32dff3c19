"""Everything is read, and slow-fast reading stands by: what it would have read at every step, to compare with."""

import sys
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from winnow.cache.view import View
from winnow.policies.base import ModelShape, Services
from winnow.policies.read.base import Observed, Probe, Reader, ReadPolicy, Row
from winnow.policies.read.slowfast import SlowFast
from winnow.policies.read.slowfast_reader import SlowFastReader
from winnow.policies.read.trigger import Boundaries, Sentence, boundaries_of


@dataclass(frozen=True)
class Shadowed(ReadPolicy):
    """Full attention, with a reader of `policy` that is told of it and never obeyed."""

    policy: SlowFast

    name: ClassVar[str] = "shadowed"

    def validate(self, shape: ModelShape) -> None:
        self.policy.validate(shape)

    def prepare(self, services: Services, ids: list[int] | None) -> None:
        self.policy.prepare(services, ids)

    def reader(self, shape: ModelShape, services: Services, prompt: int) -> "Shadow":
        boundaries = boundaries_of(services.tokenizer)
        return Shadow(self.policy.reader(shape, services, prompt), boundaries, self.policy.cooldown)


class Shadow(Reader):
    """Reads everything, and asks another reader what it would read.

    step: decode steps so far; 0: the last token of the prompt. slows: whether the step in progress would be a slow one.
    boundary: whether it feeds the first token of a sentence, as the trigger "sentence" sees it. last: per layer the
    positions [kv_heads, units] that a fast step would read now by the selection that was made before this step; fresh:
    by the one that this step has led to, where it has made one. A layer that has selected nothing is missing.
    """

    def __init__(self, reader: SlowFastReader, boundaries: Boundaries, cooldown: int) -> None:
        self.step = 0
        self.slows = False
        self.boundary = False
        self.last: dict[int, Tensor] = {}
        self.fresh: dict[int, Tensor] = {}
        self._reader = reader
        # Only starts of sentences, none of them passed over.
        self._starts = Sentence(boundaries, interval=sys.maxsize, min_gap=1, cooldown=cooldown, on="start")

    def begin(self, token: int, known: int) -> None:
        self._reader.begin(token, known)
        self.slows = bool(self._reader.slow)
        self.step += 1
        self.boundary = self._starts.fires(token)
        self.last.clear()
        self.fresh.clear()

    def wants(self, row: Row, views: list[View]) -> Probe | None:
        return self._reader.wants(row, views)

    def select(self, row: Row, views: list[View]) -> list[View]:
        self._ask(self.last, row, views)
        return views

    def observe(self, row: Row, views: list[View], observed: Observed) -> None:
        self._reader.observe(row, views, observed)
        if row.last:
            self._ask(self.fresh, row, views)

    def reset(self) -> None:
        self._reader.reset()

    @property
    def nbytes(self) -> int:
        return self._reader.nbytes

    def _ask(self, found: dict[int, Tensor], row: Row, views: list[View]) -> None:
        """Note what a fast step would read of `views`."""
        self._reader.settle()
        slow, self._reader.slow = self._reader.slow, False
        chosen = self._reader.select(row, views)
        self._reader.slow = slow
        if chosen is not None and chosen is not views:
            kv_heads = len(views[0].keys)
            read = [each if isinstance(each, View) else each.view for each in chosen]
            found[row.layer] = torch.cat([view.positions.expand(kv_heads, -1) for view in read], 1)
