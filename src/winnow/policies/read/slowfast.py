"""Slow-Fast Inference: cheap steps read few units, and now and then a dense step selects which."""

import copy
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from winnow.cache.view import View
from winnow.errors import InputError, PlanError
from winnow.kernels.select import Fusion
from winnow.policies.base import ModelShape, Scorer
from winnow.policies.read.base import Reader, ReadPolicy, Row
from winnow.policies.read.deferred import Deferred
from winnow.policies.read.selection import Buffers, Selection, Sizes, seen_by, select
from winnow.policies.read.selectors import AlphaFair, Attention, Peaks, Persist, Pooled, Selector
from winnow.policies.read.trigger import Chance, Never, Periodic, Sentence, Trigger, boundaries_of


@dataclass(frozen=True)
class SlowFast(ReadPolicy):
    """Read the first units, selected ones and the recent ones; at sentence starts read all and select anew.

    budget: selected units per KV head and layer, in tokens. sink: first units that are always read. recent: last units
    that are always read, the current one included.
    trigger: what makes a step slow. "sentence": the start of a sentence, and at the latest `interval` steps after the
    last slow one; "periodic": every `interval` steps; "random": each step with probability 1 / interval, drawn from
    `seed`; "none": no step, what the prompt selected stays.
    min_gap: with "sentence", two slow steps are at least so many steps apart. cooldown: after the end of a sentence so
    many tokens cannot be another one. trigger_on: "start": the first token of the new sentence is fed slowly, as in the
    authors' code; "end": the token that ends one is, as in the paper.
    bootstrap: how many of the last prompt tokens select what the first steps read; enough to cover a question at the
    end of the prompt (the authors' code: 16, or 2 in serving).
    recent_mode: "sliding": units that are no longer recent are not read until a slow step selects them; "anchored":
    what was recent at the last slow step stays so, up to `interval` units more.
    selector: how units are selected, see docs/slowfast.md: "peaks", "alpha_fair" (the authors'), "pooled", "attention"
    or "persist". pool: how far attention spreads, in units: to so many from an attended one on with "peaks" (None: 13),
    around it with "pooled", an odd number (None: 17). memory: by which factor "peaks" lowers, at every selection, the
    score of what was selected before; 0: it is forgotten. With slow steps every few tokens 0.5 does better.
    prior, suppression, cross_head, fusion: parts of "alpha_fair" that can be switched off or exchanged.
    layer_groups: a slow step selects for one of so many groups of layers, in turn; the others read as in a fast step.
    publish_delay: steps that still read the last selection after a new one was made; the cost of staleness.

    The cache keeps everything; `aux_bytes` counts the packed copies. A layer with fewer than sink + budget + recent
    units reads them all. Units of a layer count as they stand in its cache: where others are evicted before, the first
    are the first of those that are kept.

    Source: Slow-Fast Inference, arXiv:2603.12038, and its authors' code.
    """

    budget: int = 4096
    sink: int = 4
    recent: int = 256
    interval: int = 96
    min_gap: int = 16
    cooldown: int = 2
    bootstrap: int = 128
    trigger: Literal["sentence", "periodic", "random", "none"] = "sentence"
    trigger_on: Literal["start", "end"] = "start"
    recent_mode: Literal["sliding", "anchored"] = "sliding"
    selector: Literal["peaks", "alpha_fair", "pooled", "attention", "persist"] = "peaks"
    prior: bool = True
    suppression: bool = True
    cross_head: bool = True
    fusion: Fusion = "forward"
    pool: int | None = None
    memory: float = 0.9
    layer_groups: int = 1
    publish_delay: int = 0
    seed: int = 0

    name = "slowfast"
    source = "arXiv:2603.12038"
    off: ClassVar = {"interval": 1, "trigger": "periodic"}
    trial: ClassVar = {"budget": 7, "sink": 2, "recent": 5, "bootstrap": 4, "trigger": "periodic", "interval": 4}

    def check(self) -> None:
        least = {"budget": 1, "sink": 0, "recent": 0, "interval": 1, "min_gap": 1, "cooldown": 0, "bootstrap": 1}
        for name, value in (least | {"pool": 1, "layer_groups": 1, "publish_delay": 0, "seed": 0}).items():
            given = getattr(self, name)
            self.require(given is None or given >= value, f"{name}={given} must be at least {value}")
        self.require(
            self.recent > 0 or self.recent_mode == "anchored",
            "recent=0 with recent_mode='sliding' would leave a token out of its own attention; use recent=1 or more",
        )
        self.require(
            self.trigger != "sentence" or self.interval >= self.min_gap,
            f"interval={self.interval} is below min_gap={self.min_gap}, the least steps between two slow ones; use "
            "a larger interval or a smaller min_gap",
        )
        self.require(0 <= self.memory <= 1, f"memory={self.memory} must be between 0 and 1")
        self.require(
            self.pool is None or self.selector == "peaks" or self.pool % 2 == 1,
            f"pool={self.pool} must be odd, so that a unit stands in its middle",
        )
        plain = self.prior and self.suppression and self.cross_head
        self.require(
            plain or self.selector == "alpha_fair",
            f"prior, suppression and cross_head are parts of selector='alpha_fair', not of {self.selector!r}",
        )
        self.require(
            self.fusion == "forward" or self.selector == "persist" or (self.selector == "alpha_fair" and self.prior),
            f"fusion={self.fusion!r} joins attention and a prior, and here there is none; leave it out",
        )

    def validate(self, shape: ModelShape) -> None:
        self.require(
            self.layer_groups <= shape.layers,
            f"layer_groups={self.layer_groups} is more than the model's {shape.layers} layers",
        )

    @property
    def norms(self) -> bool:
        return self._selector().norms

    @property
    def takes_revivals(self) -> bool:
        return self.layer_groups == 1 and self.publish_delay == 0

    def prepare(self, scorer: Scorer) -> None:
        if self.trigger != "sentence":
            return
        try:
            tokenizer = scorer.tokenizer
        except InputError as error:
            raise PlanError(
                "slowfast: the model has no tokenizer to find the ends of sentences with; use trigger='periodic'"
            ) from error
        if not boundaries_of(tokenizer).enders:
            raise PlanError(
                "slowfast: the tokenizer has no token that ends a sentence (such as '.', '?' or '!'); use "
                "trigger='periodic'"
            )

    def reader(self, shape: ModelShape, scorer: Scorer, prompt: int) -> Reader:
        self.prepare(scorer)
        return SlowFastReader(self, self._trigger(scorer), self._selector(), shape.layers, prompt)

    def _trigger(self, scorer: Scorer) -> Trigger:
        if self.trigger == "periodic":
            return Periodic(self.interval)
        if self.trigger == "random":
            return Chance(self.interval, random.Random(self.seed))
        if self.trigger == "none":
            return Never()
        boundaries = boundaries_of(scorer.tokenizer)
        return Sentence(boundaries, self.interval, self.min_gap, self.cooldown, self.trigger_on)

    def _selector(self) -> Selector:
        if self.selector == "peaks":
            return Peaks(self.pool or Peaks.width, self.memory)
        if self.selector == "pooled":
            return Pooled(width=self.pool or Pooled.width)
        if self.selector == "attention":
            return Attention()
        if self.selector == "persist":
            return Persist(fusion=self.fusion)
        return AlphaFair(prior=self.prior, suppression=self.suppression, cross_head=self.cross_head, fusion=self.fusion)


class SlowFastReader(Reader):
    """When a sequence's steps are slow, and what each layer has selected."""

    def __init__(self, policy: SlowFast, trigger: Trigger, selector: Selector, layers: int, prompt: int) -> None:
        self.prompt_rows = policy.bootstrap
        self._policy, self._trigger, self._selector = policy, trigger, selector
        self._sizes = Sizes(policy.sink, policy.budget, policy.recent)
        self._layers = [_Layer() for _ in range(layers)]
        self._first = prompt - policy.bootstrap
        self._deferred = Deferred()
        self._step = 0
        self._turn = 0
        self.slow: bool = True

    def begin(self, token: int) -> None:
        self.settle()  # what the last step left undone is needed now, and the caches are about to grow
        self._step += 1
        for layer in self._layers:
            layer.publish(self._step)
        self.slow = self._trigger.fires(token)
        if not self.slow and not any(layer.current for layer in self._layers):
            self._trigger.refreshed()
            self.slow = True
        self._turn += self.slow

    def narrow(self, row: Row, views: list[View]) -> list[View]:
        current = self._layers[row.layer].current
        if current is None or self._selects(row.layer):
            return views
        index = _main(views)
        chosen = current.views(row, views[index], self._sizes, anchored=self._policy.recent_mode == "anchored")
        return views[:index] + chosen + views[index + 1 :]

    def listens(self, row: Row, views: list[View]) -> bool:
        if self._layers[row.layer].current is None:
            return views[_main(views)].units >= self._sizes.total  # or fewer, behind a window: `_select` counts
        return self._selects(row.layer)

    def note(self, row: Row, views: list[View], logits: list[Tensor]) -> None:
        index = _main(views)
        main, kept = seen_by(row, views[index])
        self._select(row, main, logits[index].view(len(main.keys), -1, views[index].units)[..., kept])

    def prompted(self, row: Row, views: list[View], queries: list[Tensor], positions: Tensor, *, last: bool) -> None:
        index, layer = _main(views), self._layers[row.layer]
        voters = positions >= self._first
        layer.queries.append((queries[index][voters], positions[voters]))
        if not last:
            return
        each, places = (torch.cat(list(parts)) for parts in zip(*layer.queries, strict=True))
        layer.queries.clear()
        main, _ = seen_by(row, views[index])
        if main.units < self._sizes.total:
            return
        rows, _, head_dim = each.shape
        kv_heads = len(main.keys)
        vectors = each.view(rows, kv_heads, -1, head_dim).transpose(0, 1)  # [kv_heads, rows, group, head_dim]
        logits = row.match(vectors.reshape(-1, head_dim), main.keys).view(kv_heads, rows, -1, main.units)
        distance = places[:, None] - main.positions.view(-1, 1, main.units)  # [1 or kv_heads, rows, units]
        hidden = distance < 0 if main.window is None else (distance < 0) | (distance >= main.window)
        self._select(row, main, logits.masked_fill(hidden[:, :, None], float("-inf")).flatten(1, 2))

    def settle(self) -> None:
        self._deferred.wait()

    def forget(self) -> None:
        for layer in self._layers:
            layer.forget()

    def fork(self) -> "SlowFastReader":
        self.settle()
        twin = copy.copy(self)
        twin._trigger, twin._layers = copy.deepcopy((self._trigger, self._layers))
        twin._deferred = Deferred()
        return twin

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self._layers)

    def _selects(self, layer: int) -> bool:
        """Whether this step is slow in a layer."""
        groups = self._policy.layer_groups
        return self.slow and layer % groups == self._turn % groups

    def _select(self, row: Row, main: View, logits: Tensor) -> None:
        """logits: [kv_heads, rows, units of `main`], the rows of a KV head's query heads one after the other."""
        layer, delay = self._layers[row.layer], self._policy.publish_delay
        if main.units < self._sizes.total:  # it reads all it has; what was selected before may be gone
            layer.forget()
            return
        # Where nothing is there to read yet, waiting would only make steps dense.
        due = self._step + 1 + delay if delay and layer.current is not None else None

        def work() -> None:
            buffers = layer.buffers(main, self._sizes, reuse=due is None)
            layer.take(select(row, main, logits, self._selector, self._sizes, layer.newest, buffers), due)

        self._deferred.submit([logits, main.keys, main.values, main.positions], work)


def _main(views: Sequence[View]) -> int:
    """Index of the view that is narrowed: the widest, but for tokens that queries see from elsewhere, which stay."""
    plain = [index for index, view in enumerate(views) if view.query_limit is None]
    return max(plain, key=lambda index: views[index].units)


class _Layer:
    """The selections of one layer: the one that is read, and those to come, each with the step that first reads it."""

    def __init__(self) -> None:
        self.current: Selection | None = None
        self.queries: list[tuple[Tensor, Tensor]] = []  # of the prompt's last rows: vectors and positions
        self._pending: deque[tuple[int, Selection]] = deque()
        self._spare: list[Buffers] = []
        self._made = 0  # bytes
        self.nbytes = 0

    @property
    def newest(self) -> Selection | None:
        return self._pending[-1][1] if self._pending else self.current

    def take(self, selection: Selection, due: int | None) -> None:
        """A selection has been made, to be read from step `due` on; None: from the next."""
        self.nbytes = max(self.nbytes, self._made + selection.tail_nbytes)
        if due is None:
            self.current = selection
        else:
            self._pending.append((due, selection))

    def publish(self, step: int) -> None:
        """Begin to read what is due."""
        while self._pending and self._pending[0][0] <= step:
            if self.current is not None:
                self._spare.append(self.current.buffers)
            self.current = self._pending.popleft()[1]

    def buffers(self, view: View, sizes: Sizes, *, reuse: bool) -> Buffers:
        """Memory for a selection. reuse: in place of the one that was read up to now, which nobody reads any more."""
        if reuse and self.current is not None:
            return self.current.buffers
        if not self._spare:
            self._spare.append(Buffers.beside(view, sizes.sink + sizes.budget))
            self._made += self._spare[-1].nbytes
        return self._spare.pop()

    def forget(self) -> None:
        """Nothing is selected any more."""
        held = [selection for _, selection in self._pending] + ([self.current] if self.current else [])
        self._spare += [selection.buffers for selection in held]
        self.current = None
        self._pending.clear()
        self.queries.clear()
