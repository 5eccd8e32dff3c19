"""Look at a sequence while it runs, without changing anything."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from winnow.cache.view import View
    from winnow.runtime.segment import Segment
    from winnow.runtime.sequence import Sequence


@dataclass(frozen=True)
class Attended:
    """The attention of rows of one sequence in one layer, just done.

    part: the rows; views: the units that they attended to; signals: what the compute policy has asked for so far,
        by layer.
    weights: computes how much the last of the rows attends to each unit, ([q_heads, units] float32, the positions
    [units]); what goes to sinks beside the units is missing from the sum of 1. Valid during the call only.
    """

    layer: int
    part: "Segment"
    views: "list[View]"
    signals: dict[int, Tensor]
    weights: Callable[[], tuple[Tensor, Tensor]]


class Observer:
    """What a sequence tells about itself; to be overridden where wanted. See `Sequence.observer`."""

    def begun(self, sequence: "Sequence", prompt: list[int]) -> None:
        """A request has begun. prompt: the tokens of it that the model gets to see."""

    def chosen(self, sequence: "Sequence", token: int) -> None:
        """The step that went before has led to this token."""

    def entered(self, layer: int, segment: "Segment", hidden: Tensor) -> None:
        """Rows are about to go through a layer. hidden: [rows, hidden]; layer: the number of layers after the last."""

    def projected(self, layer: int, part: "Segment", q: Tensor, k: Tensor, v: Tensor, scale: float) -> None:
        """A layer has projected rows. q: [q_heads, rows, head_dim], k, v: [kv_heads, rows, head_dim], unrotated; scale:
        of its attention's logits."""

    def attended(self, attended: Attended) -> None:
        """Rows have attended in a layer."""

    def compressed(self, sequence: "Sequence") -> None:
        """The caches have been compressed at a boundary, `sequence.position` tokens being known; see
        `KeepPolicy.next_eviction`."""
