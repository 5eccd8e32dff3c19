"""Slow-Fast Inference: cheap steps read few units, and now and then a dense step selects which."""

import random
from dataclasses import dataclass
from typing import ClassVar, Literal

from winnow.errors import InputError, PlanError
from winnow.kernels.select import Fusion
from winnow.parameters import Count, Natural, Where
from winnow.policies.base import ModelShape, Services
from winnow.policies.compute.base import Deep
from winnow.policies.read.base import ReadPolicy
from winnow.policies.read.packed import Buffers
from winnow.policies.read.selectors import AlphaFair, Attention, Peaks, Persist, Pooled, Selector
from winnow.policies.read.slowfast_reader import SlowFastReader
from winnow.policies.read.trigger import Chance, Never, Periodic, Sentence, Trigger, boundaries_of

OFTEN = "trigger='sentence', 'periodic' or 'random'"  # a slow step comes again and again


def _often(policy: "SlowFast") -> bool:
    return policy.trigger != "none"


def _at_sentences(policy: "SlowFast") -> bool:
    """With an interval of no more than the gap, every slow step is one that `interval` asks for."""
    return policy.trigger == "sentence" and policy.interval > policy.min_gap


_SENTENCE = Where("trigger='sentence' with an interval above min_gap", _at_sentences)
_PEAKS = Where("selector='peaks'", lambda policy: policy.selector == "peaks")
_ALPHA_FAIR = Where("selector='alpha_fair'", lambda policy: policy.selector == "alpha_fair")
MATTERS = {
    "interval": Where(OFTEN, _often),
    "min_gap": Where("trigger='sentence'", lambda policy: policy.trigger == "sentence"),
    "cooldown": _SENTENCE,
    "trigger_on": _SENTENCE,
    "seed": Where("trigger='random'", lambda policy: policy.trigger == "random"),
    "layer_groups": Where(OFTEN, _often),
    "publish_delay": Where(OFTEN, _often),
    "pool": Where("selector='peaks' or 'pooled'", lambda policy: policy.selector in ("peaks", "pooled")),
    "far": _PEAKS,
    "half_life": _PEAKS,
    "memory": Where(f"selector='peaks' with {OFTEN}", lambda policy: policy.selector == "peaks" and _often(policy)),
    "prior": _ALPHA_FAIR,
    "suppression": _ALPHA_FAIR,
    "cross_head": _ALPHA_FAIR,
    "fusion": Where(
        "selector='persist', or 'alpha_fair' with prior=True",
        lambda policy: policy.selector == "persist" or (policy.selector == "alpha_fair" and policy.prior),
    ),
}


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
    around it with "pooled", an odd number (None: 17). far: the share of it that "peaks" spreads three times as far,
    from 0 to 1. half_life: with "peaks" a row of the prompt's end counts half as much as one so many tokens behind it;
    give it the length of a question that is longer; None: all count alike. memory: by which factor "peaks" lowers, at
    every selection, the score of what was selected before (None: 0.9); 0: it is forgotten.
    prior, suppression, cross_head, fusion: parts of "alpha_fair" that can be switched off or exchanged.
    layer_groups: a slow step selects for one of so many groups of layers, in turn; the others read as in a fast step.
    publish_delay: steps that still read the last selection after a new one was made; the cost of staleness.

    The cache keeps everything; `aux_bytes` counts the packed copies. A layer with fewer than sink + budget + recent
    units reads them all. Units of a layer count as they stand in its cache: where others are evicted before, the first
    are the first of those that are kept.

    Source: Slow-Fast Inference, arXiv:2603.12038, and its authors' code.
    """

    budget: Count = 4096
    sink: Natural = 4
    recent: Natural = 256
    interval: Count = 96
    min_gap: Count = 16
    cooldown: Natural = 2
    bootstrap: Count = 128
    trigger: Literal["sentence", "periodic", "random", "none"] = "sentence"
    trigger_on: Literal["start", "end"] = "start"
    recent_mode: Literal["sliding", "anchored"] = "sliding"
    selector: Literal["peaks", "alpha_fair", "pooled", "attention", "persist"] = "peaks"
    prior: bool = True
    suppression: bool = True
    cross_head: bool = True
    fusion: Fusion = "forward"
    pool: Count | None = None
    far: float = 0.25
    half_life: Count | None = 32
    memory: float | None = None
    layer_groups: Count = 1
    publish_delay: Natural = 0
    seed: Natural = 0

    revivals_need = "use layer_groups=1 and publish_delay=0, or one of them"
    name = "slowfast"
    source = "arXiv:2603.12038"
    off: ClassVar = {"interval": 1, "trigger": "periodic"}
    trial: ClassVar = {"budget": 7, "sink": 2, "recent": 5, "bootstrap": 4, "trigger": "periodic", "interval": 4}
    matters = MATTERS

    def check(self) -> None:
        self.require(
            self.recent > 0 or self.recent_mode == "anchored",
            "recent=0 with recent_mode='sliding' would leave a token out of its own attention; use recent=1 or more",
        )
        self.require(
            self.trigger != "sentence" or self.interval >= self.min_gap,
            f"interval={self.interval} is below min_gap={self.min_gap}, the least steps between two slow ones; use "
            "a larger interval or a smaller min_gap",
        )
        self.require(self.memory is None or 0 <= self.memory <= 1, f"memory={self.memory} must be between 0 and 1")
        self.require(0 <= self.far <= 1, f"far={self.far} must be between 0 and 1")
        self.require(
            self.pool is None or self.selector == "peaks" or self.pool % 2 == 1,
            f"pool={self.pool} must be odd, so that a unit stands in its middle",
        )

    def validate(self, shape: ModelShape) -> None:
        self.require(
            self.layer_groups <= shape.layers,
            f"layer_groups={self.layer_groups} is more than the model's {shape.layers} layers",
        )

    @property
    def takes_revivals(self) -> bool:
        return self.layer_groups == 1 and self.publish_delay == 0

    def prepare(self, services: Services, ids: list[int] | None) -> None:
        if self.trigger != "sentence":
            return
        try:
            tokenizer = services.tokenizer
        except InputError as error:
            raise PlanError(
                "slowfast: the model has no tokenizer to find the ends of sentences with; use trigger='periodic'"
            ) from error
        if not boundaries_of(tokenizer).enders:
            raise PlanError(
                "slowfast: the tokenizer has no token that ends a sentence (such as '.', '?' or '!'); use "
                "trigger='periodic'"
            )

    @property
    def looks(self) -> int:
        return self.bootstrap

    def bound(self, shape: ModelShape, prompt: int, new: int) -> int:
        heard = min(self.bootstrap, prompt) * (shape.q_heads * shape.unit_bytes // 2 + 8)
        if self.sink + self.budget + self.recent > prompt + new:
            return shape.layers * heard
        copy = Buffers.bytes_of(shape, self.sink + self.budget, self.budget)
        tail = self.recent * (shape.kv_heads * (shape.unit_bytes + 8))
        copies = 1 if self.publish_delay == 0 else self.publish_delay + 2  # read, made, and those to be read later
        return shape.layers * (heard + copies * (copy + tail))

    def reader(self, shape: ModelShape, services: Services, prompt: int) -> SlowFastReader:
        self.prepare(services, None)
        return SlowFastReader(self, self._trigger(services), self._selector(), shape.layers, prompt)

    def prefix_stable(self, n: int, deep: Deep) -> int:
        """The prompt, whose rows read everything. While it is not there as a whole, all but its last rows, which select
        what the first steps read; once it is, a longer one has such rows of its own."""
        return deep.prompt if n >= deep.prompt else min(n, max(0, deep.prompt - self.bootstrap))

    def _trigger(self, services: Services) -> Trigger:
        if self.trigger == "periodic":
            return Periodic(self.interval)
        if self.trigger == "random":
            return Chance(self.interval, random.Random(self.seed))
        if self.trigger == "none":
            return Never()
        boundaries = boundaries_of(services.tokenizer)
        return Sentence(boundaries, self.interval, self.min_gap, self.cooldown, self.trigger_on)

    def _selector(self) -> Selector:
        if self.selector == "peaks":
            decay = Peaks.decay if self.memory is None else self.memory
            return Peaks(self.pool or Peaks.width, decay, self.far, self.half_life)
        if self.selector == "pooled":
            return Pooled(width=self.pool or Pooled.width)
        if self.selector == "attention":
            return Attention()
        if self.selector == "persist":
            return Persist(fusion=self.fusion)
        return AlphaFair(prior=self.prior, suppression=self.suppression, cross_head=self.cross_head, fusion=self.fusion)
