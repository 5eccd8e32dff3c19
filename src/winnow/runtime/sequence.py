"""The state of one sequence: its tokens, its units, its frequencies, and what it has cost so far."""

import copy
from dataclasses import dataclass

from winnow.cache.layer import LayerCache, Slab
from winnow.plan import Plan
from winnow.policies.base import ModelShape
from winnow.runtime.decoder import Decoder
from winnow.runtime.rotary import Frequencies
from winnow.stats import Stats

HEADROOM = 256  # units reserved for new tokens beyond the prompt; a slab that is full grows


@dataclass
class Sequence:
    """One text being processed. Forks are independent and share no memory.

    position: the next token's. read_less: whether the decode step in progress read fewer units than are kept.
    """

    plan: Plan
    shape: ModelShape
    caches: list[LayerCache]
    frequencies: Frequencies
    position: int
    stats: Stats
    read_less: bool = False

    def fork(self) -> "Sequence":
        """An independent copy of the state: the same logits come out of both for the same tokens."""
        twin = copy.copy(self)
        twin.caches = [cache.fork() for cache in self.caches]
        twin.stats = copy.copy(self.stats)
        return twin

    def measure(self) -> None:
        """Note the bytes held now, and the most each layer ever held."""
        self.stats.cache_bytes = sum(cache.nbytes for cache in self.caches)
        self.stats.peak_cache_bytes = sum(cache.peak_nbytes for cache in self.caches)
        self.stats.allocated_bytes = sum(cache.slab.nbytes for cache in self.caches)


def new_sequence(decoder: Decoder, plan: Plan, prompt: int, length: int, chunk: int) -> Sequence:
    """A sequence with no token yet. prompt: its tokens; length: with the most that will follow; chunk: rows a step."""
    shape = decoder.shape
    device, dtype = decoder.device, decoder.dtype

    def make(capacity: int) -> Slab:
        return plan.store.slab(shape.kv_heads, capacity, shape.head_dim, dtype, device)

    caches = []
    for window in shape.windows:
        limit = plan.keep.bound(chunk, window)
        wanted = prompt + min(length - prompt, HEADROOM)
        caches.append(LayerCache(make, max(1, wanted if limit is None else min(wanted, limit)), limit))
    rope_length = length if plan.keep.max_distance is None else min(length, plan.keep.max_distance)
    return Sequence(plan, shape, caches, decoder.rotary.choose(rope_length), 0, Stats(prompt_tokens=prompt))
