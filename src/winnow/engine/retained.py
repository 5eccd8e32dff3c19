"""Sequences that have ended, retained for prompts that begin as they do."""

import dataclasses
from dataclasses import dataclass

import numpy as np

from winnow.engine.request import Request
from winnow.plan import Plan
from winnow.policies.compute.base import Deep
from winnow.policies.read.base import Reader
from winnow.policies.read.dense import Dense
from winnow.runtime.decoder import Decoder
from winnow.runtime.rotary import Frequencies
from winnow.runtime.sequence import Prefix, Sequence, frequencies_of

FAR = 2**62  # bytes that nothing has


@dataclass(frozen=True)
class Kind:
    """What prompts have to have in common beside their tokens. plan: without what decode steps read, which changes no
    more of a prompt than `prefix_stable` says; weights: the same object for the same ones."""

    plan: Plan
    salt: str | None
    weights: object


@dataclass(eq=False)
class Kept:
    """A sequence that longer prompts may go on from.

    tokens: [n] int64, as many of its tokens as they may. kind: what a prompt has to have in common with it besides.
    cuts: whether any number of these tokens can be gone on from, and not only all.
    """

    tokens: np.ndarray
    kind: Kind
    state: Sequence
    cuts: bool

    def __post_init__(self) -> None:
        self.pieces = self.state.reached_nbytes

    def common(self, ids: np.ndarray) -> int:
        """How many of the first tokens are those of a prompt."""
        count = min(len(ids), len(self.tokens))
        differ = np.flatnonzero(self.tokens[:count] != ids[:count])
        return int(differ[0]) if len(differ) else count


class Retained:
    """What is retained of the sequences of one model, the least recently used first; changed by who steps.

    most: bytes, at most, each piece of memory counted once. chunk: the most rows of a prompt in a step.
    """

    def __init__(self, decoder: Decoder, most: int, chunk: int) -> None:
        self.most, self.nbytes = most, 0
        self._decoder, self._chunk = decoder, chunk
        self._kept: list[Kept] = []
        # By the id of a piece of memory: how many reach it, and the most bytes that one of them told of it: whose own
        # it is leaves out what has been evicted from it, with whom it is shared does not.
        self._holders: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def stable(self, plan: Plan, n: int, deep: Deep) -> int:
        """Of the first `n` tokens of a sequence, how many a longer prompt may go on from.

        Where nothing may be rounded otherwise: whole steps of the prompt, as it would be cut from its start.
        """
        if not self._decoder.deterministic:
            return plan.prefix_stable(n, deep)
        n = min(n, deep.prompt)
        while (stable := _last_cut(plan, plan.prefix_stable(n, deep), deep.prompt, self._chunk)) < n:
            n = stable
        return n

    def mark(self, plan: Plan, deep: Deep) -> int | None:
        """After how many tokens of a prompt its sequence is to be retained on its way; None: its end will do."""
        cuts = plan.keeps_all and not any(self._decoder.shape.windows)
        return None if cuts else self.stable(plan, deep.prompt - 1, deep) or None

    def kind(self, request: Request) -> Kind:
        """What a prompt that goes on from the sequence of a request that begins now has to have in common with it."""
        return Kind(dataclasses.replace(request.plan, read=Dense()), request.salt, self._decoder.weights())

    def put(self, kind: Kind, ids: list[int], state: Sequence) -> None:
        """Retain a sequence that has seen `ids`, all that its plan lets be gone on from; otherwise it is released.

        What any prompt that goes on from another one could go on from this one is let go.
        """
        stable = self.stable(state.plan, len(ids), state.deep)
        cuts = state.plan.keeps_all and not any(cache.dropped for cache in state.own_caches())
        if not stable or not (cuts or stable == len(ids)):
            return state.release()
        state.reader.reset()
        state.reader = Reader()
        new = Kept(np.array(ids[:stable]), kind, state, cuts)
        for other in list(self._kept):
            first = len(other.tokens)
            begins = other.kind == new.kind and new.common(other.tokens) == first
            if begins and (cuts or first == stable) and _alike(other.state, state.deep, state.frequencies, first):
                self.drop(other)
        for piece, nbytes in new.pieces.items():
            holders, counted = self._holders.get(piece, (0, 0))
            self._holders[piece] = holders + 1, max(counted, nbytes)
            self.nbytes += max(0, nbytes - counted)
        self._kept.append(new)

    def find(self, request: Request, kind: Kind, deep: Deep) -> tuple[Kept, int] | None:
        """The one with the longest prefix of a prompt, most recently used from now on, and how many tokens that is.

        deep: what the compute policy says of the prompt.
        """
        if not self._kept or request.params.prompt_logprobs is not None:
            return None
        ids, found, most = np.array(request.ids[:-1]), None, 0
        for kept in [each for each in self._kept if each.kind.weights is not kind.weights]:
            self.drop(kept)  # nothing will ever go on from it
        for kept in self._kept:
            if kept.kind == kind and (tokens := self._shared(kept, request, ids, deep)) >= max(most, 1):
                found, most = kept, tokens
        if found is None:
            return None
        self._kept.remove(found)
        self._kept.append(found)
        return found, most

    def shrink(self, most: int, sparing: Kept | None = None) -> None:
        """Let the least recently used go until no more than so many bytes are left, but for `sparing`."""
        for kept in [each for each in self._kept if each is not sparing]:
            if self.nbytes <= min(most, self.most):
                return
            self.drop(kept)

    def drop(self, kept: Kept) -> None:
        """Give back what no other sequence reaches."""
        self._kept.remove(kept)
        for piece in kept.pieces:
            holders, counted = self._holders.pop(piece)
            if holders > 1:
                self._holders[piece] = holders - 1, counted
            else:
                self.nbytes -= counted
        kept.state.release()

    def clear(self) -> None:
        for kept in list(self._kept):
            self.drop(kept)

    def _shared(self, kept: Kept, request: Request, ids: np.ndarray, deep: Deep) -> int:
        """How many tokens a prompt may go on from."""
        tokens, state = kept.common(ids), kept.state
        if tokens < len(kept.tokens) and not kept.cuts:
            return 0
        tokens, wanted = self.stable(request.plan, tokens, deep), tokens
        if tokens < wanted and not kept.cuts:
            return 0
        length = len(request.ids) + request.params.max_tokens - 1
        rotated = frequencies_of(self._decoder, request.plan, len(request.ids), length)
        return tokens if _alike(state, deep, rotated, tokens) else 0


def _alike(state: Sequence, deep: Deep, rotated: Frequencies, tokens: int) -> bool:
    """Whether the first tokens of a sequence are rotated as in another text, and go as deep."""
    anchors = [[anchor for anchor in each.anchors if anchor < tokens] for each in (deep, state.deep)]
    return anchors[0] == anchors[1] and rotated is state.frequencies


def prefix_of(kept: Kept, tokens: int, room: int) -> Prefix | None:
    """The first tokens of what is retained, for one prompt. Units lie in memory that both share, unless most of it, or
    more than `room` bytes, would be there for others' units alone: then they are copied, or None where a plan chose
    them, since what it knows of them has no copy."""
    state, unit_bytes = kept.state, sum(cache.unit_bytes for cache in kept.state.own_caches())
    needed = tokens * unit_bytes if kept.cuts else sum(state.held())
    crowded = sum(kept.pieces.values()) - needed > room
    if crowded and not state.plan.keeps_all:
        return None
    return Prefix(state.fork(), tokens, alone=crowded or (kept.cuts and 2 * tokens < state.position))


def _last_cut(plan: Plan, n: int, prompt: int, chunk: int) -> int:
    """The last token count up to `n` at which a step ends when a prompt is computed from its start."""
    place = following = 0
    while following <= n and place < prompt:
        place, end = following, plan.next_boundary(following, prompt)
        following = place + chunk if end is None else min(place + chunk, end)
    return place
