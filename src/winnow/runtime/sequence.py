"""The state of one sequence: its tokens, its units, its frequencies, and what it has cost so far."""

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from winnow.cache.aside import Aside
from winnow.cache.layer import LayerCache
from winnow.cache.memory import Slab
from winnow.plan import Plan
from winnow.policies.base import ModelShape
from winnow.policies.compute.base import Deep, Projection
from winnow.policies.keep.base import Moment, UnitScorer
from winnow.policies.read.base import Reader
from winnow.runtime.decoder import Decoder
from winnow.runtime.observer import Observer
from winnow.runtime.rotary import Frequencies
from winnow.runtime.surprisal import Surprise
from winnow.stats import Stats

HEADROOM = 256  # units reserved for new tokens beyond the prompt; a slab that is full grows


@dataclass
class Sequence:
    """One text being processed. Forks are independent; units that they have in common lie in memory that they share.

    prompt: tokens of the prompt that the model sees; omitted: those it does not, because the plan shortened it.
    entrances, signals: the layers that the compute policy names, the second for prefill and for decode.
    deep: the prompt tokens that the compute policy named, going: their positions, [tokens].
    projections, transient: what it says of layers.
    scorer: what scores new units for the keep policy. surprise: what it is told of tokens.
    reader: what the read policy knows.
    planted: whether the first token's units are there, in the layers at which others stop, without a row of it.
    chunk: rows a step is meant to hold. position: the next token's. aside: per layer where the compute policy chooses,
    what has been set aside there. read_less: whether the decode step in progress read fewer units than are kept.
    observer: told what happens in every layer.
    """

    plan: Plan
    shape: ModelShape
    caches: list[LayerCache]
    aside: dict[int, Aside]
    frequencies: Frequencies
    prompt: int
    chunk: int
    position: int
    stats: Stats
    entrances: Collection[int]
    signals: Mapping[bool, Collection[int]]
    deep: Deep
    going: Tensor
    projections: Mapping[int, Projection]
    transient: Collection[int]
    scorer: UnitScorer | None = None
    surprise: Surprise | None = None
    reader: Reader = field(default_factory=Reader)
    planted: bool = False
    omitted: int = 0
    read_less: bool = False
    observer: Observer | None = None

    def fork(self) -> "Sequence":
        """An independent copy of the state: the same logits come out of both for the same tokens."""
        twin = copy.copy(self)
        twin.reader = self.reader.fork()
        twin.caches = []
        for layer, cache in enumerate(self.caches):
            holder = self.holder(layer)
            twin.caches.append(cache.fork() if holder == layer else twin.caches[holder])
        twin.aside = {layer: aside.fork() for layer, aside in self.aside.items()}
        twin.surprise = None if self.surprise is None else self.surprise.fork()
        twin.stats = copy.copy(self.stats)
        return twin

    def cut(self, position: int) -> None:
        """Give up what came from `position` on, where every layer has a unit for every token."""
        self.position, self.prompt = position, min(self.prompt, position)
        for cache in self.own_caches():
            cache.cut(position)

    def holder(self, layer: int) -> int:
        """The layer whose cache this one uses: its own, or that of one below."""
        return self.projections[layer].holder if layer in self.projections else layer

    def own_caches(self) -> list[LayerCache]:
        """Every cache once: layers may share them."""
        return [cache for layer, cache in enumerate(self.caches) if self.holder(layer) == layer]

    @cached_property
    def stops(self) -> int:
        """The layer from which on tokens are missing; the number of layers where all reach the last."""
        return min(self.entrances, default=self.shape.layers)

    @cached_property
    def late(self) -> int:
        """The layer from which on the tokens of a prompt come all at once, at its end, to be compressed then."""
        compresses = self.plan.keep.boundary(0, self.prompt) is not None
        return self.stops if compresses and self.plan.compute.waits else self.shape.layers

    def boundary(self) -> int | None:
        """After how many tokens the caches are compressed next, if ever."""
        regular = self.plan.keep.boundary(self.position, self.prompt)
        if self.late == self.shape.layers or self.position >= self.prompt:
            return regular
        return self.prompt if regular is None else min(regular, self.prompt)

    def evictions_ahead(self, layer: int) -> bool:
        """Whether a layer's cache will be compressed after the rows of this step."""
        if layer >= self.late and self.position < self.prompt:
            return True
        return self.plan.keep.boundary(self.position, self.prompt) is not None

    def advance(self, decoder: Decoder, tokens: list[int], hidden: Tensor) -> None:
        """Count `tokens` as done, and compress the caches where a boundary is reached.

        hidden: [rows, hidden] after the last layer.
        """
        boundary = self.boundary()
        regular = boundary == self.plan.keep.boundary(self.position, self.prompt)
        if self.surprise is not None and boundary is not None:
            self.surprise.note(decoder, hidden, tokens)
        if self.position < self.prompt or self.position + len(tokens) == boundary:
            self.note()  # some of it is about to be given back
        self.position += len(tokens)
        if self.position != boundary:
            return
        self.reader.settle()
        following = self.boundary()
        room = (self.prompt + HEADROOM if following is None else following) - self.position
        noted = None if self.surprise is None else self.surprise.take()
        ends = self.position == self.prompt
        for layer, window in enumerate(self.shape.windows):
            late = ends and layer >= self.late
            if self.holder(layer) == layer and (late or regular):
                moment = Moment(self.prompt, self.position, window, room, noted, late)
                self.plan.keep.compress(self.caches[layer], moment)
        self.reader.forget()
        if self.observer is not None:
            self.observer.compressed(self)

    def window(self, window: int | None) -> int | None:
        """A layer's window as far as eviction goes: a token that is revived may need units that have left it."""
        return None if self.plan.compute.revives else window

    def forget(self, seen: Tensor, below: int) -> None:
        """Evict the units of tokens that are not `seen`, [known] bool, from the layers below `below`."""
        self.reader.settle()
        for cache in self.caches[:below]:
            positions = cache.live_positions()
            if not (kept := seen[positions]).all():
                cache.retain(kept.nonzero().flatten(), room=HEADROOM)
        self.reader.forget()

    def release(self) -> None:
        """Give the memory back; nothing can be computed after."""
        self.reader.settle()
        self.caches.clear()
        self.aside.clear()
        self.reader = Reader()

    def held(self) -> tuple[int, int]:
        """Bytes held now: of units, and of all that policies hold beside them.

        That is memory which has been filled and not given back: an evicted unit's counts until its slab is replaced.
        Not counted: the one index of positions that a layer has under any plan, memory that is reserved for what may
        come, and the working memory of a step. Weights that a policy brings belong to the model.
        """
        caches = self.own_caches()
        beside = sum(cache.held_beside_nbytes for cache in caches) + sum(aside.nbytes for aside in self.aside.values())
        beside += self.reader.nbytes + self.going.nbytes + (0 if self.surprise is None else self.surprise.nbytes)
        return sum(cache.held_nbytes for cache in caches), beside

    def bound_bytes(self, new: int) -> int | None:
        """The most bytes that units ever take with `new` tokens after the prompt, by the keep policy's closed formula.

        None: as many as the text has.
        """
        total = 0
        for layer, window in enumerate(self.shape.windows):
            units = self.plan.keep.bound(self.prompt, new, self.chunk, self.window(window))
            if self.holder(layer) == layer and units is None:
                return None
            if self.holder(layer) == layer:
                total += min(units or 0, self.prompt + new) * self.shape.kv_heads * self.shape.unit_bytes
        return total

    def note(self) -> None:
        """Note what is held now, if it is the most so far.

        Between two steps, and in decode steps, what is held only grows, but where caches are compressed and where a
        compute policy chooses: called before and after these and at the end, it misses no peak.
        """
        units, beside = self.held()
        self.stats.aux_bytes = max(self.stats.aux_bytes, beside)
        self.stats.total_bytes = max(self.stats.total_bytes, units + beside)

    def measure(self) -> None:
        """Note the bytes held now, and the most held at once."""
        self.note()
        self.stats.cache_bytes = sum(cache.nbytes for cache in self.own_caches())
        self.stats.peak_cache_bytes = sum(cache.peak_nbytes for cache in self.own_caches())
        self.stats.allocated_bytes = sum(cache.allocated_nbytes for cache in self.own_caches())


def new_sequence(
    decoder: Decoder,
    plan: Plan,
    prompt: int,
    length: int,
    chunk: int,
    omitted: int = 0,
    deep: Deep | None = None,
) -> Sequence:
    """A sequence with no token yet.

    prompt: the prompt's tokens that the model sees; length: with the most that will follow; chunk: rows a step;
    omitted: prompt tokens that it does not see; deep: what the compute policy says of the prompt.
    """
    shape = decoder.shape
    device, dtype = decoder.device, decoder.dtype

    def make(capacity: int) -> Slab:
        return plan.store.slab(shape.kv_heads, capacity, shape.head_dim, dtype, device)

    deep = deep or Deep.none(prompt)
    units = plan.compute.prompt_units(shape, prompt, deep)
    rope_length = plan.rope_positions(shape, prompt, length - prompt)
    sequence = Sequence(
        plan=plan,
        shape=shape,
        caches=[],
        aside={layer: Aside(shape.hidden, dtype, device) for layer in sorted(plan.compute.entrances(shape))},
        frequencies=decoder.rotary.choose(length if rope_length is None else min(length, rope_length)),
        prompt=prompt,
        chunk=chunk,
        position=0,
        stats=Stats(prompt_tokens=prompt + omitted, rows_full=omitted * shape.layers),
        entrances=frozenset(plan.compute.entrances(shape)),
        signals={decode: frozenset(plan.compute.signals(shape, decode=decode)) for decode in (False, True)},
        deep=deep,
        going=torch.tensor(deep.positions, dtype=torch.int64, device=device),
        projections=plan.compute.projections(shape),
        transient=frozenset(plan.compute.transient(shape)),
        surprise=None if plan.keep.surprisal is None else Surprise(plan.keep.surprisal),
        omitted=omitted,
    )
    for layer, (window, held) in enumerate(zip(shape.windows, units, strict=True)):
        if (holder := sequence.holder(layer)) != layer:
            sequence.caches.append(sequence.caches[holder])
            continue
        new = min(length - prompt, HEADROOM)
        limit, wanted = (plan.keep.bound(prompt, n, chunk, sequence.window(window)) for n in (length - prompt, new))
        if layer >= sequence.late:  # all that goes on comes at once
            limit = wanted = None
        cache = LayerCache(
            make,
            max(1, held + new if wanted is None else min(held + new, wanted)),
            limit,
            scored=plan.keep.scores_units(window),
            normed=plan.read.norms,
            compact=layer < sequence.stops and plan.keep.compact(window),
            shares=not decoder.deterministic,  # runs of units that lie apart are summed apart
        )
        sequence.caches.append(cache)
    return sequence
