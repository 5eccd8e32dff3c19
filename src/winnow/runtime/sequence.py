"""The state of one sequence: its tokens, its units, its frequencies, and what it has cost so far."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from winnow.cache.aside import Aside
from winnow.cache.layer import LayerCache
from winnow.cache.pattern import ALL, All
from winnow.cache.settled import SettledSlab
from winnow.cache.sums import Sums
from winnow.plan import Plan
from winnow.policies.base import ModelShape, StorePolicy
from winnow.policies.compute.base import Deep
from winnow.policies.compute.gates import Gates
from winnow.policies.keep.base import KeepPolicy, Merger, Moment, Repeat, Score, UnitScorer
from winnow.policies.prefill.base import Chooser
from winnow.policies.read.base import Reader
from winnow.runtime.decoder import Decoder
from winnow.runtime.observer import Observer
from winnow.runtime.outputs import output_norms
from winnow.runtime.queries import QueriesSeen, score_held
from winnow.runtime.rotary import Frequencies, LayerRope
from winnow.runtime.shape import NOT_ROTATED
from winnow.runtime.surprisal import Surprise
from winnow.stats import Stats

HEADROOM = 256  # units reserved for new tokens beyond the prompt; a slab that is full grows


@dataclass
class Sequence:
    """One text being processed. Forks are independent; units that they have in common lie in memory that they share.

    prompt: tokens of the prompt that the model sees; omitted: those it does not, because the plan shortened it.
    gates: where tokens may stop. deep: the prompt tokens that go through all layers, going: their positions, [tokens].
    score, patterns: what units are evicted by, and what rows see in each layer. windows: outside of which units leave a
    layer: a token that is revived may need those that have left its own. scorer: what scores new units. merger: what
    makes sums of units. surprise: how surprising tokens are. queries: those that rows have come with, where units are
    scored by them. repeats: chunks by which the prompt is yet to be read once more, the one in progress first.
    reader: what the read policy knows. chooser: what says which units rows of the prompt read.
    planted: whether the first token's units are there, in the layers at which others stop, without a row of it.
    votes: per layer, how the last tokens of the prompt that have been there attend, [q_heads, tokens], until all have.
    chunk: rows a step is meant to hold. position: the next token's. aside: per gate,
    what has been set aside there. read_less: whether the decode step in progress read fewer units than are kept.
    observer: told what happens in every layer to rows of the text.
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
    gates: Gates
    deep: Deep
    going: Tensor
    score: Score | None
    patterns: tuple[All, ...]
    windows: tuple[int | None, ...]
    scorer: UnitScorer | None = None
    merger: Merger | None = None
    surprise: Surprise | None = None
    queries: QueriesSeen | None = None
    repeats: tuple[Repeat, ...] = ()
    reader: Reader = field(default_factory=Reader)
    chooser: Chooser | None = None
    planted: bool = False
    votes: dict[int, Tensor] = field(default_factory=dict)
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
        twin.queries = None if self.queries is None else self.queries.fork()
        twin.votes = dict(self.votes)
        twin.stats = copy.copy(self.stats)
        return twin

    def cut(self, position: int) -> None:
        """Give up what came from `position` on, where every layer has a unit for every token."""
        self.position, self.prompt = position, min(self.prompt, position)
        if self.prompt < self.deep.prompt:
            self.deep = self.deep.among(range(self.prompt))
        for cache in self.own_caches():
            cache.cut(position)

    def go_on(self, begun: "Sequence", at: int, length: int, *, alone: bool) -> None:
        """Begin with the first `at` tokens of another sequence, which is used up; this one has no memory yet.

        length: of the text, as in `new_sequence`. alone: sharing no units with others.
        """
        if begun.position > at:
            begun.cut(at)
        self.caches, self.aside, self.surprise, self.planted = begun.caches, begun.aside, begun.surprise, begun.planted
        self.queries = begun.queries
        for layer in range(self.shape.layers):
            if self.holder(layer) == layer:
                limit, capacity = _measures(self, layer, length)
                self.caches[layer].go_on(limit, capacity, alone=alone)
        self.position = self.stats.cached_tokens = at
        rows, known = at * self.shape.layers, begun.stats
        self.stats.rows_full += rows
        self.stats.cached_rows = min(rows, known.rows_computed + known.cached_rows)

    @property
    def reached_nbytes(self) -> dict[int, int]:
        """By the id of every piece of memory that is there as long as this sequence is, the bytes held in it."""
        pieces = {id(self): self.held()[1]}
        for cache in self.own_caches():
            pieces |= cache.reached_nbytes
        return pieces

    def holder(self, layer: int) -> int:
        """The layer whose cache this one uses: its own, or that of one below."""
        fills = self.gates.fills
        return fills[layer].holder if layer in fills else layer

    def own_caches(self) -> list[LayerCache]:
        """Every cache once: layers may share them."""
        return [cache for layer, cache in enumerate(self.caches) if self.holder(layer) == layer]

    @property
    def repeat(self) -> Repeat | None:
        """The chunk of the prompt whose rows come next, behind all that is to be read once more; None: not now."""
        return self.repeats[0] if self.repeats and self.position >= self.repeats[-1].stop else None

    @property
    def repeating(self) -> tuple[int, ...]:
        """What is left of its tokens; none: the text itself comes next."""
        return () if (repeat := self.repeat) is None else repeat.tokens[self.position - self.repeats[-1].stop :]

    @property
    def watcher(self) -> Observer | None:
        """Who is told of the rows that come next."""
        return None if self.repeat is not None else self.observer

    @cached_property
    def late(self) -> int:
        """The layer from which on the tokens of a prompt come all at once, at its end, to be compressed then."""
        evicts = self.plan.keep.next_eviction(0, self.prompt) is not None
        return self.gates.gathers if evicts else self.shape.layers

    @property
    def plain(self) -> bool:
        """Whether rows of its prompt attend to all that was there before, in all layers, and nobody is told how."""
        told = self.reader.selects or self.score is not None or self.observer is not None or self.chooser is not None
        return not told and all(pattern == ALL for pattern in self.patterns) and not any(self.windows)

    @cached_property
    def settling(self) -> StorePolicy | None:
        """What holds units in another form than they came in."""
        store = self.plan.store
        return None if store.next_change(0, self.prompt) is None else store

    def boundary(self) -> int | None:
        """After how many tokens units are next evicted by their scores, or held in another form, or what rows of the
        prompt read is chosen anew, if ever."""
        ends = [self.next_eviction()]
        if (store := self.settling) is not None:
            ends.append(store.next_change(self.position, self.prompt))
        if self.position < self.prompt:
            ends.append(self.plan.prefill.next_end(self.position))
        return min((end for end in ends if end is not None), default=None)

    def piece(self, rows: int, left: int) -> int:
        """How many of the `left` tokens of its prompt go through the layers next, in a step that has room for `rows`:
        more than that where what they read is chosen for all of them at once."""
        end, whole = self.boundary(), self.plan.whole  # at an end steps begin anew, and leave no slivers
        return min(max(whole, rows - rows % whole), left, left if end is None else end - self.position)

    def next_eviction(self) -> int | None:
        """After how many tokens units are next evicted by their scores, if ever."""
        regular = self.plan.keep.next_eviction(self.position, self.prompt)
        if self.late == self.shape.layers or self.position >= self.prompt:
            return regular
        return self.prompt if regular is None else min(regular, self.prompt)

    def evictions_ahead(self, layer: int) -> bool:
        """Whether units of a layer will be evicted by their scores after the rows of this step."""
        if layer >= self.late and self.position < self.prompt:
            return True
        return self.plan.keep.next_eviction(self.position, self.prompt) is not None

    def advance(self, decoder: Decoder, tokens: list[int], hidden: Tensor) -> None:
        """Count `tokens` as done, evict units by their scores where it is time to, and have the store hold what stays.

        hidden: [rows, hidden] after the last layer.
        """
        if self.repeat is not None:
            self._repeated(decoder, len(tokens))
        else:
            self._advance(decoder, tokens, hidden)
        if self.position == self.prompt and not self.repeats:
            self._prompt_ends()

    def _advance(self, decoder: Decoder, tokens: list[int], hidden: Tensor) -> None:
        eviction, boundary = self.next_eviction(), self.boundary()
        regular = eviction == self.plan.keep.next_eviction(self.position, self.prompt)
        if self.surprise is not None and eviction is not None:
            self.surprise.note(decoder, hidden, tokens)
        if self.position < self.prompt or self.position + len(tokens) == boundary:
            self.note()  # some of it is about to be given back
        changes = None if self.settling is None else self.settling.next_change(self.position, self.prompt)
        self.position += len(tokens)
        if self.position == eviction and self.repeat is None:
            self._evict_all(decoder, regular=regular)
        if self.position == changes:
            self.quantize(decoder)

    def _prompt_ends(self) -> None:
        """Tell the reader what layers hold, but for those whose keys are yet to be rotated or differ in number."""
        for layer, cache in enumerate(self.caches):
            if cache.rotated and cache.ragged is None:
                first = cache.dropped + cache.head
                self.reader.prompt_ends(layer, first, cache.stop - cache.start, cache.keys_between)

    def _repeated(self, decoder: Decoder, rows: int) -> None:
        """Count rows of a chunk that is read once more; what they have left goes at its end. After the last chunk units
        are evicted."""
        self.note()
        self.position += rows
        if self.repeating:
            return
        repeat, stop = self.repeats[0], self.repeats[-1].stop
        for cache in self.own_caches():
            cache.take_back(len(repeat.tokens))
        self.position, self.repeats = stop, self.repeats[1:]
        if not self.repeats:
            self._evict_all(decoder, regular=True)

    def _evict_all(self, decoder: Decoder, *, regular: bool) -> None:
        """Evict units of all layers by their scores. regular: of those that tokens reach as they come, too."""
        self.reader.reset()
        following = self.next_eviction()
        room = (self.prompt + HEADROOM if following is None else following) - self.position
        if not self._evict_together(room):
            self._evict_each(decoder, room, regular=regular)
        if self.observer is not None:
            self.observer.compressed(self)

    def _evict_together(self, room: int) -> bool:
        """Evict what the policy does not select over layers; whether it has chosen so."""
        caches = [
            self.caches[layer]
            for layer, pattern in enumerate(self.patterns)
            if pattern.held and self.holder(layer) == layer
        ]
        chosen = self.plan.keep.select_all(caches, self.prompt) if caches else None
        for cache, index in zip(caches, chosen or (), strict=chosen is not None):
            cache.retain(index, room)
        return chosen is not None

    def _evict_each(self, decoder: Decoder, room: int, *, regular: bool) -> None:
        noted = None if self.surprise is None else self.surprise.take()
        ends = self.position == self.prompt
        for layer in range(self.shape.layers):
            late = ends and layer >= self.late
            if self.holder(layer) == layer and (late or regular):
                scorer = self.score.held if self.score is not None and self.patterns[layer].held else None
                if scorer is not None:
                    rope = rope_of(decoder, self, layer)
                    noted = score_held(scorer, self.caches[layer], rope, self.position, layer, self.queries)
                self.evict(decoder, layer, room, noted, late=late)

    def quantize(self, decoder: Decoder) -> None:
        """Hold units as the store does that stay, in layers from which none will be evicted by choice any more."""
        if not self._forgets:
            self._quantize(decoder, range(self.shape.layers), self.position)

    def quantize_done(self, decoder: Decoder, layers: range, known: int) -> None:
        """The same of layers with which rows of a prompt are done, as soon as they are: what came is there as it came
        in one layer at a time."""
        if self.settles_at(known):
            self.note()
            self._quantize(decoder, layers, known)

    def settles_at(self, known: int) -> bool:
        """Whether units change at the end of the step that comes to so many tokens of the prompt."""
        store = self.settling
        if store is None or not self.position < known <= self.prompt or self.repeat is not None:
            return False
        return store.next_change(self.position, self.prompt) == known and (known == self.prompt or not self._forgets)

    def _quantize(self, decoder: Decoder, layers: range, known: int) -> None:
        if (store := self.settling) is None:
            return
        following = store.next_change(known, self.prompt)
        room = 0 if following is None or known < self.prompt else following - known
        for layer in layers:
            shared = layer + 1 < self.shape.layers and self.caches[layer + 1] is self.caches[layer]
            if not shared and not self.evictions_ahead(layer):
                if not self.caches[layer].rotated:
                    settle(decoder, self, self.holder(layer))
                self.caches[layer].quantize(store.residual, store.group, room)

    @property
    def _forgets(self) -> bool:
        """Whether a compute policy will yet evict tokens from the layers below its gate."""
        return self.gates.forgets > 0 and self.position < self.prompt

    def evict(self, decoder: Decoder, layer: int, room: int, noted: Tensor | None, *, late: bool) -> None:
        """Evict units of a layer that holds them until then, by their scores; see `evict_by_score`."""
        if self.patterns[layer].held:
            cache = self.caches[layer]
            asked = self.score is not None and self.score.outputs
            outputs = output_norms(decoder, layer, cache) if asked else None
            moment = Moment(self.prompt, self.position, self.shape.contexts[layer], late, outputs, self.merger)
            evict_by_score(cache, self.plan.keep, self.score, moment, room, noted)

    @torch.inference_mode()
    def make_room(self) -> None:
        """Take what a decode step's row needs of a disk that may be full: what is raised now has spoilt nothing."""
        if self.plan.store.in_files:
            for cache in self.own_caches():
                cache.make_room(1)

    def leave(self, layer: int) -> None:
        """Drop what no later row may see in a layer: behind rows that repeat others their window comes back."""
        if self.repeat is None:
            self.patterns[layer].evict(self.caches[layer], self.windows[layer])

    def forget(self, seen: Tensor, below: int) -> None:
        """Evict the units of tokens that are not `seen`, [known] bool, from the layers below `below`."""
        self.reader.reset()
        for cache in self.caches[:below]:
            positions = cache.live_positions()
            if not (kept := seen[positions]).all():
                cache.retain(kept.nonzero().flatten(), room=HEADROOM)

    def release(self) -> None:
        """Give the memory back; nothing can be computed after."""
        self.reader.reset()
        for cache in self.own_caches():
            cache.release()
        self.caches.clear()
        self.aside.clear()
        self.queries = None
        self.reader = Reader()

    def held(self) -> tuple[int, int]:
        """Bytes held now: of units, and of all that policies hold beside them.

        That is memory which has been filled and not given back: an evicted unit's counts until its slab is replaced.
        Not counted: the one index of positions that a layer has under any plan, memory that is reserved for what may
        come, and the working memory of a step. Weights that a policy brings belong to the model.
        """
        caches = self.own_caches()
        beside = sum(cache.held_beside_nbytes for cache in caches) + sum(aside.nbytes for aside in self.aside.values())
        noted = (each.nbytes for each in (self.surprise, self.queries) if each is not None)
        beside += self.reader.nbytes + self.going.nbytes + sum(noted) + sum(each.nbytes for each in self.votes.values())
        return self.plan.store.in_memory(sum(cache.held_nbytes for cache in caches)), beside

    @property
    def allocated_nbytes(self) -> int:
        """Bytes reserved for units, in memory or in files."""
        return sum(cache.allocated_nbytes for cache in self.own_caches())

    def bound_bytes(self, new: int) -> int | None:
        """The most bytes that units ever take with `new` tokens after the prompt, by the keep policy's closed formula.

        None: as many as the text has.
        """
        total, later = 0, max(new, self.plan.keep.repeated(self.prompt))
        come = self.plan.compute.layer_tokens(self.shape, self.prompt, self.deep).units
        for layer, context in enumerate(self.shape.contexts):
            if self.holder(layer) != layer:
                continue
            units = self.plan.bound(self.gates, self.prompt, new, self.chunk, context)
            if units is None:
                return None
            # Where a layer's tokens come all at once it has them all before any is evicted.
            most = come[layer] + later if layer >= self.late else min(units, self.prompt + later)
            total += most * self.shape.kv_heads * self.shape.unit_bytes
        return total

    def note(self) -> None:
        """Note what is held now, if it is the most so far.

        Between two steps, and in decode steps, what is held only grows, but where caches are compressed and where a
        compute policy chooses: called before and after these and at the end, it misses no peak.
        """
        units, beside = self.held()
        self.stats.aux_bytes = max(self.stats.aux_bytes, beside)
        self.stats.total_bytes = max(self.stats.total_bytes, units + beside)
        if self.plan.store.in_files:
            self.stats.disk_bytes = max(self.stats.disk_bytes, self.allocated_nbytes)

    def measure(self) -> None:
        """Note the bytes held now, and the most held at once."""
        self.note()
        self.stats.cache_bytes = sum(cache.nbytes for cache in self.own_caches())
        self.stats.held_bytes = self.stats.cache_bytes + self.held()[1]
        self.stats.peak_cache_bytes = sum(cache.peak_nbytes for cache in self.own_caches())
        self.stats.allocated_bytes = self.allocated_nbytes


@dataclass(frozen=True)
class Prefix:
    """The first `tokens` of a text, as far as they have been computed in another sequence. state: it, to be used up;
    alone: whether it is to share no memory with others."""

    state: Sequence
    tokens: int
    alone: bool = False


def evict_by_score(
    cache: LayerCache,
    keep: KeepPolicy,
    score: Score | None,
    moment: Moment,
    room: int = 0,
    noted: Tensor | None = None,
) -> None:
    """Evict the units of a layer that a policy does not select.

    room: units that are sure to come before the next time. noted: [tokens since the last time], how surprising each
    is.
    """
    if noted is not None:
        cache.set_scores(noted)
    index = keep.select(cache, moment)
    if isinstance(index, Sums):
        cache.merge(index, room)
    elif index is not None:
        cache.retain(index, room)
    if score is None:
        return
    if score.voters is not None:  # the next eviction has others
        cache.scale_scores(0.0)
    elif index is not None and score.decay != 1:
        cache.scale_scores(score.decay)


def settle(decoder: Decoder, sequence: Sequence, layer: int) -> None:
    """Rotate the keys of a compact cache for good: no unit of it will be evicted any more."""
    cache, kind = sequence.caches[layer], decoder.rope_kinds[layer]
    if cache.length and kind is not NOT_ROTATED:
        places = torch.arange(cache.length, device=decoder.device)
        cos, sin = decoder.rotary.tables(sequence.frequencies, places)[kind]

        def rotated(keys: Tensor, first: int) -> Tensor:
            return decoder.rotary.rotate(keys[None], (cos[:, first:], sin[:, first:]))[0]

        cache.change_keys(rotated)
    cache.rotated = True


def rope_of(decoder: Decoder, sequence: Sequence, layer: int) -> LayerRope | None:
    """How the keys of a layer are rotated when they come; None: not at all."""
    kind = decoder.rope_kinds[layer]
    return None if kind is NOT_ROTATED else LayerRope(decoder.rotary, sequence.frequencies, kind)


def new_sequence(
    decoder: Decoder,
    plan: Plan,
    prompt: int,
    length: int,
    chunk: int,
    omitted: int = 0,
    deep: Deep | None = None,
    prefix: Prefix | None = None,
) -> Sequence:
    """A sequence with no token yet, or with those of a prefix.

    prompt: the prompt's tokens that the model sees; length: with the most that will follow; chunk: rows a step;
    omitted: prompt tokens that it does not see; deep: what the compute policy says of the prompt.
    """
    shape = decoder.shape
    device, dtype = decoder.device, decoder.dtype
    deep = deep or Deep.none(prompt)
    gates, score = plan.gates(shape), plan.keep.score
    sequence = Sequence(
        plan=plan,
        shape=shape,
        caches=[],
        aside={layer: Aside(shape.hidden, dtype, device) for layer in gates.at},
        frequencies=frequencies_of(decoder, plan, prompt, length),
        prompt=prompt,
        chunk=plan.step_rows(chunk),
        position=0,
        stats=Stats(prompt_tokens=prompt + omitted, rows_full=omitted * shape.layers),
        gates=gates,
        deep=deep,
        going=torch.tensor(deep.positions, dtype=torch.int64, device=device),
        score=score,
        patterns=tuple(map(plan.keep.pattern, shape.contexts)),
        windows=(None,) * shape.layers if gates.revives else shape.windows,
        surprise=Surprise(score.repeated) if score is not None and score.source == "logits" else None,
        queries=None if score is None or score.queries is None else QueriesSeen(score.queries, shape),
        omitted=omitted,
    )
    try:
        if prefix is None:
            _take_memory(sequence, decoder, length)
        else:
            sequence.go_on(prefix.state, prefix.tokens, length, alone=prefix.alone)
    except BaseException:
        sequence.release()  # the error's traceback holds the sequence
        raise
    return sequence


def frequencies_of(decoder: Decoder, plan: Plan, prompt: int, length: int) -> Frequencies:
    """How keys are rotated in a text of `length` tokens; the same object for texts in which they are rotated alike."""
    used = plan.rope_positions(decoder.shape, prompt, length - prompt)
    return decoder.rotary.choose(length if used is None else min(length, used))


def _take_memory(sequence: Sequence, decoder: Decoder, length: int) -> None:
    """Make the caches of all layers, for a text of `length` tokens."""
    plan, shape, gates = sequence.plan, sequence.shape, sequence.gates
    make = plan.store.slabs(shape.kv_heads, shape.head_dim, decoder.dtype, decoder.device)
    for layer in range(shape.layers):
        if (holder := sequence.holder(layer)) != layer:
            sequence.caches.append(sequence.caches[holder])
            continue
        limit, capacity = _measures(sequence, layer, length)
        cache = LayerCache(
            make,
            max(1, capacity),
            limit,
            quantized=_opened(decoder, sequence, layer),
            scored=sequence.score is not None and sequence.patterns[layer].held,
            compact=layer < gates.first and sequence.patterns[layer].held and plan.keep.compact,
            # Runs of units that lie apart are summed apart; keys that are turned where they lie are nobody else's.
            shares=not decoder.deterministic and plan.read.reach is None,
        )
        sequence.caches.append(cache)


def _measures(sequence: Sequence, layer: int, length: int) -> tuple[int | None, int]:
    """Of the cache of a layer of a text of `length` tokens: the most units ever, if that is known, and its room."""
    plan, prompt, context = sequence.plan, sequence.prompt, sequence.shape.contexts[layer]
    held = plan.compute.layer_tokens(sequence.shape, prompt, sequence.deep).units[layer]
    new = length - prompt if plan.store.in_files else min(length - prompt, HEADROOM)
    if layer >= sequence.late:  # all that goes on comes at once
        return None, held + new
    limit, wanted = (plan.bound(sequence.gates, prompt, n, sequence.chunk, context) for n in (length - prompt, new))
    room = held + max(new, plan.keep.repeated(prompt))
    return limit, room if wanted is None else min(room, wanted)


def _opened(decoder: Decoder, sequence: Sequence, layer: int) -> Callable[[], SettledSlab] | None:
    """What makes memory for units of a layer that stay, as the store holds them; None: they stay as they came."""
    if sequence.settling is None:
        return None
    shape, rope = sequence.shape, rope_of(decoder, sequence, layer)
    return partial(sequence.settling.settled, shape.kv_heads, shape.head_dim, decoder.dtype, decoder.device, rope)
