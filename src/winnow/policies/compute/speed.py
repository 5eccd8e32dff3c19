"""SPEED: the prompt stops at layer K; what is decoded goes through all layers, and sees little of the prompt above."""

import re
from dataclasses import dataclass
from typing import ClassVar

from winnow.parameters import Where
from winnow.policies.base import ModelShape, Services
from winnow.policies.compute.anchors import anchor_positions, anchors_problem
from winnow.policies.compute.base import Deep, LayerTokens
from winnow.policies.compute.cutoff import ShallowPrefill
from winnow.policies.compute.gates import Gate
from winnow.policies.compute.turns import decode_start, last_start, system_length

_LAST = re.compile(r"last:([1-9]\d{0,17})")


@dataclass(frozen=True)
class Speed(ShallowPrefill):
    """Prompt tokens stop at layer K; the tokens of the answer go through all layers (shallow prefill, deep decode).

    cutoff: K, how many of the first layers compute the prompt: a count from 1 on (1 is one layer), or a share of the
        layers above 0 and up to 1.0, which is all. Of 32 layers, 24 and 0.75 are the same.
    anchors: prompt tokens that go through all layers: "bos" (the first token, whichever it is), "none", "system" (all
        before the first user's message), "first:4", "last:16" (before the decode phase), "random:8", "all", or several
        joined by +.
    decode_from: where the decode phase begins, which goes through all layers too: "header", with the last assistant
        header of the chat template, or with the last token of a prompt that has none; or "last:m", with the last m
        prompt tokens, or all of a prompt that has fewer.
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

    anchors: str = "bos"
    decode_from: str = "header"
    self_only: bool = False

    name = "speed"
    source = "arXiv:2605.06105"
    trial: ClassVar = {"cutoff": 2, "decode_from": "last:3"}
    matters: ClassVar = {"decode_from": Where("anchors other than 'all'", lambda policy: "all" not in policy.anchors)}

    def check(self) -> None:
        super().check()
        self.require(not (problem := anchors_problem(self.anchors)), problem or "")
        self.require(
            self.decode_from == "header" or _LAST.fullmatch(self.decode_from) is not None,
            f"decode_from={self.decode_from!r} must be 'header' or like 'last:1'",
        )
        self.require(
            not self.self_only or self.anchors in ("bos", "none"),
            f"self_only is for anchors='bos' and anchors='none', not {self.anchors!r}",
        )

    def gate(self, shape: ModelShape) -> Gate:
        return Gate(self.cut(shape), self_only=self.self_only)

    def full_depth(self, ids: list[int], services: Services) -> Deep:
        """The anchors and the prompt tokens of the decode phase."""
        start = self._start(ids, services)
        system = system_length(ids, services.template) if "system" in self.anchors else None
        return Deep(tuple(anchor_positions(self.anchors, start, system)), start, len(ids))

    def _start(self, ids: list[int], services: Services) -> int:
        """The position of the first prompt token that belongs to the decode phase."""
        start = last_start(self.decode_from, len(ids))
        return decode_start(ids, services.template) if start is None else start

    def prefix_stable(self, n: int, deep: Deep) -> int:
        """The prompt before its decode phase, which is prompt like any other in a longer one."""
        return min(n, deep.start)

    def layer_tokens(self, shape: ModelShape, prompt: int, deep: Deep | None = None) -> LayerTokens:
        """All below K; above, the anchors and the decode phase, but no row of position 0: its units are there."""
        deep, lower = deep or Deep.none(prompt), min(self.cut(shape), shape.layers)
        rows, units = len(deep) - (0 in deep.anchors), len(deep.anchors) if self.self_only else len(deep)
        return LayerTokens(*([prompt] * lower + [upper] * (shape.layers - lower) for upper in (rows, units)))
