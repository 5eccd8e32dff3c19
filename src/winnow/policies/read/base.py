"""What every read policy is, and what it knows of a sequence."""

import copy
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from winnow.cache.run import Dense
from winnow.cache.view import View
from winnow.kernels.pages import best_pages, facts_of_pages
from winnow.kernels.signs import Signs, best_units
from winnow.policies.base import ModelShape, Policy, Services

Probe = Literal["logits", "queries", "mass"]
Keys = Callable[[int, int], Tensor]  # of units [start, stop): [kv_heads, units, head_dim]


class TokenIndex(Protocol):
    """What ranks tokens by the hidden states of rows: a trained part, for one model."""

    @property
    def layers(self) -> Container[int]:
        """Those in which it does."""

    @property
    def dim(self) -> int:
        """Values of a key."""

    def keys(self, layer: int, hidden: Tensor) -> Tensor:
        """By what tokens are known, [rows, dim] float32. hidden: [rows, hidden], of rows as they enter a layer."""

    def scores(self, layer: int, hidden: Tensor, keys: Tensor) -> Tensor:
        """How rows, [rows, hidden], rank tokens by their keys, [tokens, dim]: [rows, tokens] float32."""


@dataclass(frozen=True)
class Row:
    """The row of a decode step, or the last one of some of a prompt, in one layer.

    position: its place in the text; rows: how many stand there side by side, up to it; window: the layer's own. decode:
    the phase; last: whether it is the last row of its
    sequence so far, and the prompt's are all there. appended, dropped: of the layer's cache, see `LayerCache`, the
    row's own unit included. ordered: whether units stand in order of position. match: (queries [vectors, head_dim],
    keys [kv_heads, units, head_dim]) -> logits [vectors, units] float32 as the softmax sees them, vector i being of KV
    head i * kv_heads // vectors. ready: a view with its keys as the row attends to them: a cache may hold them
    unrotated. nearer: a copy of a view with its keys as at rope position 0, where they are held as the text has them.
    """

    layer: int
    position: int
    rows: int
    window: int | None
    decode: bool
    last: bool
    appended: int
    dropped: int
    ordered: bool
    match: Callable[[Tensor, Tensor], Tensor]
    ready: Callable[[View], View]
    nearer: Callable[[View], View]


@dataclass(frozen=True)
class Pages:
    """Units that the row's own query chooses: the `count` pages whose keys it could match best.

    view: the pages, side by side, of `page` units each, with their keys as the row attends to them. known: the least
    and the greatest keys of the pages in a layer, [2, kv_heads, pages, head_dim]; told which layer, and how to look at
    the keys there of units [start, stop) of the view, where pages are new.
    """

    view: View
    page: int
    count: int
    known: Callable[[int, Keys], Tensor]

    @property
    def units(self) -> int:
        """Per KV head, that are read."""
        return self.page * self.count

    @property
    def besides(self) -> int:
        """Per KV head, what is read to choose, as units: the bounds of a page have the bytes of one."""
        return self.view.units // self.page

    def facts(self, layer: int, keys: Keys) -> tuple[np.ndarray, Tensor]:
        """What the layers' kernel is told, [kv_heads, CHOICE], but for COUNT and CHOSEN; and what has to live on."""
        bounds = self.known(layer, keys)
        return facts_of_pages(bounds, self.page), bounds

    def chosen(self, layer: int, queries: Tensor) -> View:
        """What a row with this query, [1, q_heads, head_dim], reads in a layer."""
        keys = self.view.keys
        least, greatest = self.known(layer, lambda start, stop: keys[:, start:stop])
        return self.view.chosen(best_pages(queries[-1], least, greatest, self.page, self.count))


@dataclass(frozen=True)
class Ranked:
    """Units that the row's own query chooses: the `count` that it matches best by the signs of their keys.

    view: among which it chooses, with their keys as the row attends to them. known: the signs in a layer, told what
    `Pages.known` is told. besides: as of `Pages`.
    """

    view: View
    count: int
    known: Callable[[int, Keys], Signs]
    besides: int

    @property
    def units(self) -> int:
        """Per KV head, that are read."""
        return self.count

    def facts(self, layer: int, keys: Keys) -> tuple[np.ndarray, Signs]:
        """As of `Pages`."""
        signs = self.known(layer, keys)
        return signs.facts, signs

    def chosen(self, layer: int, queries: Tensor) -> View:
        """As of `Pages`."""
        keys = self.view.keys
        signs = self.known(layer, lambda start, stop: keys[:, start:stop])
        return self.view.chosen(best_units(queries[-1], signs, self.count))


@dataclass(frozen=True)
class Blocks:
    """Units that rows choose together, by all heads of a layer: the `count` blocks whose vectors match their mean query
    best, and those beside the blocks.

    view: the units, which all of the rows see, with their keys as these attend to them. first: the unit with which the
    first block begins; size: units of a block. vectors: [blocks, q_heads, head_dim] float32.
    """

    view: View
    first: int
    size: int
    count: int
    vectors: Tensor

    besides = 0  # the vectors are nobody's units

    @property
    def units(self) -> int:
        """Per KV head, that are read."""
        return self.view.units - (len(self.vectors) - self.count) * self.size

    def chosen(self, layer: int, queries: Tensor) -> View:
        """What rows with these queries, [rows, q_heads, head_dim], read in a layer."""
        match = self.vectors.flatten(1) @ queries.float().mean(0).flatten()
        best = match.topk(self.count).indices.sort().values
        read = torch.ones(self.view.units, dtype=torch.bool, device=best.device)
        blocks = read[self.first : self.first + len(self.vectors) * self.size].view(-1, self.size)
        blocks[:] = False
        blocks[best] = True
        return self.view.chosen(read.nonzero().flatten().expand(self.view.kv_heads, -1).contiguous())


@dataclass(frozen=True)
class Copies:
    """Copies of units, which every layer has of its own.

    view: those of the layer that was asked; of: told another layer in which the row reads alike, the same there.
    """

    view: View
    of: Callable[[int], Dense]

    @property
    def units(self) -> int:
        """Per KV head, that are read."""
        return self.view.units


@dataclass(frozen=True)
class Observed:
    """How rows that read everything attended in a layer.

    positions: [rows]. queries: where they were asked for, per view [rows, q_heads, head_dim]. logits: likewise, of a
    decode step's row, per view [q_heads, units] float32, see `Row.match`. mass: where it was asked for, the attention
    that the units of a view got of all the rows, by the view's number: [q_heads, units] float32.
    """

    positions: Tensor
    queries: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    mass: Callable[[int], Tensor] | None = None


class Reader:
    """What a read policy knows of one sequence; changed by its steps and forked with it. This one reads everything.

    slow: whether the decode step in progress, or the last one, is a slow one; None: where there is no such thing. In a
    step that is not, no token is revived.
    """

    slow: bool | None = None

    @property
    def selects(self) -> bool:
        """Whether `select` may leave anything out."""
        return type(self).select is not Reader.select

    def alike(self, layer: int) -> object:
        """Equal for layers in which it has the row of a decode step read the same of units that stand alike: `select`
        is asked once for all of them, answers with units where they lie or with `Copies`, and wants nothing of them."""
        return layer if self.selects else None

    def begin(self, token: int, known: int) -> None:
        """A decode step begins, which feeds `token`, with which `known` tokens have come."""

    def entered(self, layer: int, positions: Tensor, hidden: Tensor, *, decode: bool) -> None:
        """Rows are about to go through a layer, all of a step at once, before `select` is asked there; told where
        `ReadPolicy.by_rows` says so. positions: [rows], ascending; hidden: [rows, hidden]; decode: the phase."""

    def wants(self, row: Row, views: list[View]) -> Probe | None:
        """What to tell `observe` of the row and those before it, which read everything in this layer; None: nothing.

        views: what the row may see, or reads. Logits are those of a decode step's row; of a prompt there are queries;
        the mass of attention is there of both.
        """
        return None

    def select(self, row: Row, views: list[View]) -> Sequence[View | Pages | Ranked | Blocks | Copies]:
        """What the row of a decode step reads of `views`, all that it may see; the same list: all of it. With
        `ReadPolicy.whole`, also what rows of a prompt read together, the last of which is told.

        Asked before the layer is computed: the slot of the row's own unit is in the views, what will be there is not.
        """
        return views

    def observe(self, row: Row, views: list[View], observed: Observed) -> None:
        """Rows have attended, and `wants` has asked for it. row: the last of them."""

    def prompt_ends(self, layer: int, first: int, units: int, keys: Keys) -> None:
        """What a layer holds once all is done that the prompt's end does: so many units for every KV head, from number
        `first` of all that ever came on, those that stay in front for good not among them; asked of every layer."""

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
    """Which of the kept units a decode step reads, and with `whole` rows of a prompt.

    whole: so many rows of a prompt, or multiples of it, go through the layers together, and each so many of them read
    what `Reader.select` says; 0: they read everything. reach: how many rope positions it uses: units at a distance of
    `reach` or more, in layers without a window, are held with their keys as at rope position 0, and whoever reads them
    turns queries to `reach` - 1. None: all, and keys stay as the text has them.
    """

    verb = "read"

    @property
    def whole(self) -> int:
        return 0

    @property
    def reach(self) -> int | None:
        return None

    @property
    def looks(self) -> int:
        """Of so many of a prompt's last rows it looks at how they attend to all units at once."""
        return 0

    # Whether readers are told of the rows that enter layers (`Reader.entered`), which those of all tokens have to.
    by_rows: ClassVar[bool] = False

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
