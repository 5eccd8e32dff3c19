"""What every read policy is, and what it knows of a sequence."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from winnow.cache.view import View
from winnow.policies.base import ModelShape, Policy, Services


@dataclass(frozen=True)
class Row:
    """The row of a decode step, or the last one of a prompt, in one layer.

    position: its place in the text; window: the layer's own. appended, dropped: of the layer's cache, see `LayerCache`,
    the row's own unit included. ordered: whether units stand in order of position. query: [q_heads, head_dim] as it
    attends to a view. match: (queries [vectors, head_dim], keys [kv_heads, units, head_dim]) -> logits [vectors, units]
    float32 as the softmax sees them, vector i being of KV head i * kv_heads // vectors. keys: [kv_heads, units,
    head_dim], those of a view as the row attends to them: a cache may hold them unrotated.
    """

    layer: int
    position: int
    window: int | None
    appended: int
    dropped: int
    ordered: bool
    query: Callable[[View], Tensor]
    match: Callable[[Tensor, Tensor], Tensor]
    keys: Callable[[View], Tensor]


class Reader:
    """What a read policy knows of one sequence; changed by its steps and forked with it. This one reads everything.

    slow: whether the decode step in progress, or the last one, is a slow one; None: where there is no such thing. In a
    step that is not, no token is revived. prompt_rows: how many of the last rows of a prompt `prompted` is told of.
    extra: units per KV head whose bytes the last `narrow` read besides those of the views that it returned.
    """

    slow: bool | None = None
    prompt_rows = 0
    extra = 0

    @property
    def narrows(self) -> bool:
        """Whether `narrow` may leave anything out."""
        return type(self).narrow is not Reader.narrow

    def begin(self, token: int) -> None:
        """A decode step begins, which feeds `token`."""

    def narrow(self, row: Row, views: list[View]) -> list[View]:
        """What the row of a decode step reads of `views`, all that it may see; the same list: all of it."""
        return views

    def foreseen(self, layer: int, units: int) -> bool:
        """Whether what a decode step reads in a layer, of the `units` that it may see, is known without its query, and
        nothing is to be noted there."""
        return True

    def listens(self, row: Row, views: list[View]) -> bool:
        """Whether `note` is to be told of the row's attention in a layer, in which it reads everything."""
        return False

    def note(self, row: Row, views: list[View], logits: list[Tensor]) -> None:
        """What a row that read everything matched. logits: per view [q_heads, units], see `Row.match`."""

    def prompted(self, row: Row, views: list[View], queries: list[Tensor], positions: Tensor, *, last: bool) -> None:
        """Rows at `positions`, among the last `prompt_rows` of the prompt, have attended in a layer.

        queries: per view [rows, q_heads, head_dim]. last: whether all of the prompt's rows have; `row` is the last.
        """

    def settle(self) -> None:
        """Wait for work that reads the caches: they are about to change."""

    def forget(self) -> None:
        """Units have been evicted at a boundary: what is known of the caches holds no more."""

    def fork(self) -> "Reader":
        """An independent copy that shares no memory."""
        self.settle()
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

    @property
    def norms(self) -> bool:
        """Whether the norms of keys are wanted in `View.norms`."""
        return False

    # What to set for `takes_revivals`, where parameters decide.
    revivals_need: ClassVar[str] = ""

    @property
    def takes_revivals(self) -> bool:
        """Whether there are steps that read everything in all layers, in which skipped tokens may be revived."""
        return False

    def prepare(self, services: Services) -> None:
        """Raise, before any work, what `reader` would raise for want of a tokenizer or of tokens in it."""

    def bound(self, shape: ModelShape, prompt: int, new: int) -> int:
        """The most bytes that `reader` ever holds besides the caches, for `new` tokens after a prompt."""
        return 0

    def reader(self, shape: ModelShape, services: Services, prompt: int) -> Reader:
        """What is known of a sequence before its prompt of `prompt` tokens is processed."""
        return Reader()
