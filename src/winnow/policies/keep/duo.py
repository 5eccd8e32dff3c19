"""DuoAttention: some heads keep everything, the others the first tokens and a recent window."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

from annotated_types import Interval
from torch import Tensor

from winnow.cache.layer import LayerCache
from winnow.cache.pattern import ALL, HELD, All
from winnow.cache.view import NOBODY
from winnow.errors import ModelError
from winnow.models.head_gates import read_gates
from winnow.parameters import Count, Natural, Where
from winnow.policies.base import LayerContext, ModelShape, Services
from winnow.policies.keep.base import KeepPolicy, Moment, end_of_chunk


@dataclass(frozen=True)
class Duo(KeepPolicy):
    """Keep everything in retrieval heads, and the first `sink` tokens and the last `recent` in the other, streaming, KV
    heads.

    gates: a directory in which `winnow train duo` has written a gate for each KV head of the model, the name of bundled
        ones, or the gates themselves, from 0 to 1, of the first layer's heads, the second's, and so on; None:
        untrained, all the same, to measure what it costs.
    share: of the KV heads of layers without a sliding window that are retrieval heads: `round(share * heads)` of those
        with the highest gates; of equal gates the first head of every layer comes before the second.
    threshold: instead, the heads whose gates are at least this.
    sink: first tokens of the text that streaming heads keep.
    recent: last tokens that they keep, at least.
    chunk: prompt tokens from one eviction to the next; None: a single one, at the end of the prompt.
    decode_chunk: new tokens from one eviction to the next, 1 in the paper; None: none is evicted after the prompt.
        Every eviction moves all that a layer keeps.

    In prefill streaming heads evict as chunks come, so that their memory and what their rows read stay bounded: rows of
    a chunk see the sinks, the last `recent` tokens before the chunk, and the chunk up to themselves, where the paper
    masks row by row a prompt that is computed at once. Of a prompt of n tokens and m more a layer with r retrieval
    heads holds r (n + m) + (kv_heads - r) min(n + m, sink + recent + m modulo decode_chunk) units, or m itself without
    one. Rope positions are places in the text; the paper's streaming heads rotate at places in the cache, which are the
    same distances within the window. A layer with a sliding window keeps that in all heads, whatever their gates.

    Source: Xiao et al., DuoAttention, arXiv:2410.10819, section 2; the authors' code.
    """

    gates: str | tuple[float, ...] | None = None
    share: Annotated[float, Interval(ge=0, le=1)] = 0.5
    threshold: Annotated[float, Interval(ge=0, le=1)] | None = None
    sink: Natural = 64
    recent: Count = 256
    chunk: Count | None = 512
    decode_chunk: Count | None = 128

    name = "duo"
    source = "arXiv:2410.10819, section 2"
    per_head = True
    ragged = True
    off: ClassVar = {"share": 1.0}
    trial: ClassVar = {"sink": 2, "recent": 4, "chunk": 6, "decode_chunk": 4}
    matters: ClassVar = {"share": Where("no threshold", lambda policy: policy.threshold is None)}
    loads: ClassVar = ("gates",)

    def check(self) -> None:
        self.require(self.gates != "", "gates='' is no directory; leave gates out for untrained ones")
        self.require(
            self.threshold is None or self.gates is not None,
            f"threshold={self.threshold} is for trained gates; give gates=..., or a share",
        )
        if isinstance(self.gates, tuple):
            self.require(
                all(0 <= gate <= 1 for gate in self.gates), f"gates={list(self.gates)} must be from 0 to 1, each"
            )

    def validate(self, shape: ModelShape) -> None:
        heads = shape.layers * shape.kv_heads
        has, given = f"the model {shape.layers} layers of {shape.kv_heads} KV heads", len(self._known or ())
        if isinstance(self.gates, str) and given != heads:
            raise ModelError(
                f"the gates {self.gates} were trained on {read_gates(self.gates).base}: they are of {given} KV heads, "
                f"and {has}; train its own with: winnow train duo"
            )
        self.require(self._known is None or given == heads, f"gates has {given} numbers, and {has}; give {heads}")

    def prepare(self, services: Services, ids: list[int] | None) -> None:
        if isinstance(self.gates, str):
            services.head_gates(self.gates)

    @cached_property
    def _known(self) -> tuple[float, ...] | None:
        """The gates of all heads, one layer's after the other's."""
        if not isinstance(self.gates, str):
            return self.gates
        return tuple(gate for layer in read_gates(self.gates).layers for gate in layer)

    def retrieval(self, layer: LayerContext) -> list[bool]:
        """Which KV heads of a layer keep everything."""
        layers = [at for at, window in enumerate(layer.windows or [None] * layer.layers) if window is None]
        heads = [(head, at) for head in range(layer.kv_heads) for at in layers]
        gates = dict.fromkeys(heads, 0.0)
        if (known := self._known) is not None:
            gates = {(head, at): known[at * layer.kv_heads + head] for head, at in heads}
        highest = set(sorted(heads, key=lambda each: -gates[each])[: round(self.share * len(heads))])
        if self.threshold is not None:
            highest = {head for head, gate in gates.items() if gate >= self.threshold}
        return [(head, layer.index) in highest for head in range(layer.kv_heads)]

    def pattern(self, layer: LayerContext) -> All:
        return HELD if layer.window is None else ALL

    def next_eviction(self, known: int, prompt: int) -> int | None:
        return end_of_chunk(known, prompt, prompt, self.chunk, self.decode_chunk)

    def select(self, cache: LayerCache, moment: Moment) -> Sequence[Tensor] | None:
        """Of each KV head [kept]."""
        positions = cache.live_positions().expand(cache.kv_heads, -1)
        there = positions != NOBODY
        stays = there & ((positions < self.sink) | (positions >= moment.known - self.recent))
        for head, everything in enumerate(self.retrieval(moment.layer)):
            if everything:
                stays[head] = there[head]
        return None if bool((stays == there).all()) else [head.nonzero().flatten() for head in stays]

    def bound(self, prompt: int, new: int, layer: LayerContext) -> int:
        all_of_it, streamed = prompt + new, self._streamed(prompt, new)
        everything = sum(self.retrieval(layer))
        return -(-(everything * all_of_it + (layer.kv_heads - everything) * streamed) // layer.kv_heads)

    def longest(self, prompt: int, new: int, layer: LayerContext, kv_heads: int) -> int:
        return prompt + new if any(self.retrieval(layer)) else self._streamed(prompt, new)

    def _streamed(self, prompt: int, new: int) -> int:
        """The most units that a streaming head ever has."""
        kept = self.sink + self.recent
        filling = min(prompt, kept + (prompt if self.chunk is None else self.chunk))
        later = min(prompt + new, kept + (new if self.decode_chunk is None else min(new, self.decode_chunk)))
        return max(filling, later)
