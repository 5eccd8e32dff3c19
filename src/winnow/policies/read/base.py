"""What every read policy is, and what it knows of a sequence."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from winnow.cache.view import View
from winnow.policies.base import ModelShape, Policy, Services

Probe = Literal["logits", "queries"]


@dataclass(frozen=True)
class Row:
    """The row of a decode step, or the last one of some of a prompt, in one layer.

    position: its place in the text; window: the layer's own. decode: the phase; last: whether it is the last row of its
    sequence so far, and the prompt's are all there. appended, dropped: of the layer's cache, see `LayerCache`, the
    row's own unit included. ordered: whether units stand in order of position. query: [q_heads, head_dim] as it attends
    to a view; None: neither it nor the row's own unit is known yet, only where that one will be. match: (queries
    [vectors, head_dim], keys [kv_heads, units, head_dim]) -> logits [vectors, units] float32 as the softmax sees them,
    vector i being of KV head i * kv_heads // vectors. keys: [kv_heads, units, head_dim], those of a view as the row
    attends to them: a cache may hold them unrotated.
    """

    layer: int
    position: int
    window: int | None
    decode: bool
    last: bool
    appended: int
    dropped: int
    ordered: bool
    query: Callable[[View], Tensor] | None
    match: Callable[[Tensor, Tensor], Tensor]
    keys: Callable[[View], Tensor]


@dataclass(frozen=True)
class Observed:
    """How rows that read everything attended in a layer.

    queries: per view [rows, q_heads, head_dim]; positions: [rows]. logits: of a decode step's row, per view
    [q_heads, units] float32, see `Row.match`; None where they were not asked for.
    """

    queries: list[Tensor]
    positions: Tensor
    logits: list[Tensor] | None = None


class Reader:
    """What a read policy knows of one sequence; changed by its steps and forked with it. This one reads everything.

    slow: whether the decode step in progress, or the last one, is a slow one; None: where there is no such thing. In a
    step that is not, no token is revived. extra: units per KV head whose bytes the last `select` read besides those of
    the views that it returned.
    """

    slow: bool | None = None
    extra = 0

    @property
    def selects(self) -> bool:
        """Whether `select` may leave anything out."""
        return type(self).select is not Reader.select

    def begin(self, token: int) -> None:
        """A decode step begins, which feeds `token`."""

    def wants(self, row: Row, views: list[View]) -> Probe | None:
        """What to tell `observe` of the row and those before it, which read everything in this layer; None: nothing.

        views: what the row may see, or reads. Logits are those of a decode step's row; of a prompt there are queries.
        """
        return None

    def select(self, row: Row, views: list[View]) -> list[View] | None:
        """What the row of a decode step reads of `views`, all that it may see; the same list: all of it. None: that
        takes its query, which is not known yet."""
        return views

    def observe(self, row: Row, views: list[View], observed: Observed) -> None:
        """Rows have attended, and `wants` has asked for it. row: the last of them."""

    def reset(self) -> None:
        """Units are about to be evicted by choice: what is known of the caches holds no more, and nothing may still be
        reading them."""

    def fork(self) -> "Reader":
        """An independent copy that shares no memory."""
        return copy.deepcopy(self)

    @property
    def nbytes(self) -> int:
        """Bytes of what it holds besides the caches: of memory that has been filled and not given back."""
        return 0


class ReadPolicy(Policy):
    """Which of the kept units a decode step reads."""

    verb = "read"
    # Whether layers may hold units of different tokens.
    takes_gaps: ClassVar[bool] = True

    # What to set for `takes_revivals`, where parameters decide.
    revivals_need: ClassVar[str] = ""

    @property
    def takes_revivals(self) -> bool:
        """Whether there are steps that read everything in all layers, in which skipped tokens may be revived."""
        return False

    def bound(self, shape: ModelShape, prompt: int, new: int) -> int:
        """The most bytes that `reader` ever holds besides the caches, for `new` tokens after a prompt."""
        return 0

    def reader(self, shape: ModelShape, services: Services, prompt: int) -> Reader:
        """What is known of a sequence before its prompt of `prompt` tokens is processed."""
        return Reader()
