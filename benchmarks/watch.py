"""One prompt continued alone, with a note of which of its tokens every layer has computed after every step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from winnow import LLM, Completion, Observer, Plan, SamplingParams
from winnow.evaluation.evaluate import Progress, silent

if TYPE_CHECKING:
    from winnow.runtime.observer import Attended
    from winnow.runtime.segment import Segment


@dataclass(frozen=True)
class Watched:
    """A completion and what it took inside.

    computed: [new tokens][layers], how many of the prompt's tokens a layer has computed before each new token; the
    first line is prefill's, each other one is a decode step further. Units evicted since are counted too.
    """

    completion: Completion
    computed: list[list[int]]


@dataclass
class Watch(Observer):
    """It only takes notes, so that timing is left alone. rows: per step, per call."""

    rows: list[list[tuple[int, Tensor]]] = field(default_factory=lambda: [[]])

    def entered(self, layer: int, segment: "Segment", hidden: Tensor) -> None:
        if layer == 0 and segment.decode:
            self.rows.append([])

    def attended(self, attended: "Attended") -> None:
        part = attended.part
        if not part.decode or part.late:  # the other rows of decode steps are new tokens
            self.rows[-1].append((attended.layer, part.positions))

    def computed(self, layers: int, prompt: int) -> list[list[int]]:
        """[steps][layers] different positions below `prompt` among the rows so far."""
        seen = torch.zeros(layers, prompt, dtype=torch.bool)
        counts = []
        for step in self.rows:
            for layer, positions in step:
                seen[layer, positions[positions < prompt].cpu()] = True
            counts.append(seen.sum(1).tolist())
        return counts


def generate_watched(
    llm: LLM, ids: Sequence[int], params: SamplingParams, plan: Plan, progress: Progress = silent
) -> Watched:
    """Like `LLM.generate` for one prompt and one sample; times span the same.

    progress: called with the number of prompt tokens just processed.
    Raises InputError, CapacityError or PlanError before any work is done.
    """
    [request] = llm.check([list(ids)], params, plan=plan)
    watch = Watch()
    session = llm.session(plan=plan, max_tokens=params.max_tokens, observer=watch)
    session.feed(request.ids, progress=progress)
    return Watched(session.generate(request), watch.computed(llm.decoder.shape.layers, len(session.prompt)))
