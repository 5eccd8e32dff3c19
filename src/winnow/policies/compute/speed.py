"""SPEED: the prompt stops at layer K; what is decoded goes through all layers, and sees little of the prompt above."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from winnow.errors import InputError
from winnow.policies.base import Choice, ComputePolicy, Entrance, ModelShape, Scorer
from winnow.policies.compute.anchors import anchor_positions, anchors_problem
from winnow.policies.compute.cutoff import cut, cutoff_problem
from winnow.policies.compute.turns import header_start, system_length

_LAST = re.compile(r"last:([1-9]\d*)")


@dataclass(frozen=True)
class Speed(ComputePolicy):
    """Prompt tokens stop at layer K; the tokens of the answer go through all layers (shallow prefill, deep decode).

    cutoff: K, how many of the first layers compute the prompt: a count from 1 on (1 is one layer), or a share of the
        layers above 0 and up to 1.0, which is all. Of 32 layers, 24 and 0.75 are the same.
    anchors: prompt tokens that go through all layers: "bos" (the first token, whichever it is), "none", "system" (all
        before the first user's message), "first:4", "last:16" (before the decode phase), "random:8", "all", or several
        joined by +.
    decode_from: where the decode phase begins, which goes through all layers too: "header", with the last assistant
        header of the chat template, or with the last token of a prompt that has none; or "last:m", with the last m
        prompt tokens.
    self_only: in the layers from K on a token of the decode phase sees the anchors and itself, not the tokens decoded
        before it (an ablation; for anchors "bos" and "none").

    From layer K on, caches hold the anchors and the decode phase only, at their true positions: K/L of the memory and
    of the reading of long prompts, and 1 - K/L of their prefill is not computed. Earlier turns of a conversation are
    prompt, their answers included. The first token sees only itself, so its units are computed once per model and
    counted in no prompt's `rows_computed`. Needs no waiting: chunks of any size give the same result.

    A model that was not trained to answer so loses quality, the more the smaller K is; `winnow train speed` trains one.

    Source: SPEED: Shallow Prefill, Deep Decoding, arXiv:2605.06105. That the decode phase begins with the header of the
    answer is what the authors' published models and training do; the paper's text does not say.
    """

    cutoff: int | float = 0.75
    anchors: str = "bos"
    decode_from: str = "header"
    self_only: bool = False

    name = "speed"
    source = "arXiv:2605.06105"
    off: ClassVar = {"cutoff": 1.0}
    trial: ClassVar = {"cutoff": 2, "decode_from": "last:3"}

    def check(self) -> None:
        self.require(not (problem := cutoff_problem(self.cutoff)), problem or "")
        self.require(not (problem := anchors_problem(self.anchors)), problem or "")
        self.require(
            self.decode_from == "header" or _LAST.fullmatch(self.decode_from) is not None,
            f"decode_from={self.decode_from!r} must be 'header' or like 'last:1'",
        )
        self.require(
            not self.self_only or self.anchors in ("bos", "none"),
            f"self_only is for anchors='bos' and anchors='none', not {self.anchors!r}",
        )

    def validate(self, shape: ModelShape) -> None:
        self.require(
            self.cut(shape) <= shape.layers,
            f"cutoff={self.cutoff} is above the model's {shape.layers} layers; use 1 to {shape.layers}",
        )

    def cut(self, shape: ModelShape) -> int:
        """K: how many layers compute the prompt."""
        return cut(self.cutoff, shape)

    def resolved(self, shape: ModelShape) -> "Speed":
        return replace(self, cutoff=self.cut(shape))

    @property
    def leaves_gaps(self) -> bool:
        return self.cutoff != 1.0 or isinstance(self.cutoff, int)

    def stops_at(self, shape: ModelShape) -> int | None:
        return self.cut(shape) if self.cut(shape) < shape.layers else None

    def entrances(self, shape: ModelShape) -> tuple[int, ...]:
        """Layer K, unless it is above the last."""
        return tuple(layer for layer in (self.stops_at(shape),) if layer is not None)

    def transient(self, shape: ModelShape) -> Collection[int]:
        return range(self.cut(shape), shape.layers) if self.self_only else ()

    def deep(self, ids: list[int], scorer: Scorer) -> list[int]:
        """The anchors and the prompt tokens of the decode phase."""
        start = self.decode_start(ids, scorer)
        needs_system = "system" in self.anchors
        system = system_length(ids, scorer.template) if needs_system else None
        return [*anchor_positions(self.anchors, start, system), *range(start, len(ids))]

    def decode_start(self, ids: list[int], scorer: Scorer) -> int:
        """The position of the first prompt token that belongs to the decode phase."""
        if self.decode_from == "header":
            found = header_start(ids, scorer.template)
            return len(ids) - 1 if found is None else found
        count = int(self.decode_from.partition(":")[2])
        if count > len(ids):
            raise InputError(f"decode_from={self.decode_from!r} asks for more tokens than the prompt's {len(ids)}")
        return len(ids) - count

    def choose(self, entrance: Entrance) -> Choice | None:
        if entrance.decode:
            return None  # the caches above hold nothing else
        return Choice(entrance.deep[entrance.deep < entrance.known])

    def prompt_rows(self, shape: ModelShape, prompt: int, deep: Sequence[int] = ()) -> list[int]:
        """All below K; above, the anchors and the decode phase, without the first token, whose units are there."""
        upper = len(deep) - (prompt > 1 and 0 in deep)
        return [prompt if layer < self.cut(shape) else upper for layer in range(shape.layers)]

    def prompt_units(self, shape: ModelShape, prompt: int, deep: Sequence[int] = ()) -> list[int]:
        held = int(0 in deep) if self.self_only else len(deep)
        return [prompt if layer < self.cut(shape) else held for layer in range(shape.layers)]
