"""What is trained and measured: cutoffs, with and without an anchor, by three ways of training, one recipe for all."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from winnow.learn.recipe import Lora, Recipe
from winnow.policies.compute.speed import Speed

LAYERS = 8  # of needle
CUTOFFS = (4, 5, 6, 7)  # L/2, 5L/8, 3L/4, 7L/8
LOWER = (1, 2, 3)  # besides, not trained and with LoRA, to see where it breaks
Training = Literal["post hoc", "lora", "full"]

LORA = Recipe(learning_rate=1e-3, batch=1, accumulate=4, log_every=1, save_every=20, lora=Lora(rank=16, alpha=32))
FULL = Recipe(learning_rate=3e-4, batch=1, accumulate=4, log_every=1, save_every=20, lora=None)


@dataclass(frozen=True)
class Arm:
    """One model under one plan. cutoff: 8 is full depth; training "post hoc": none, the bundled model as it is."""

    cutoff: int
    anchors: str
    training: Training

    @property
    def name(self) -> str:
        """For files: `speed-6-bos-lora`, `full-depth-lora`."""
        depth = "full-depth" if self.cutoff == LAYERS else f"speed-{self.cutoff}-{self.anchors}"
        return f"{depth}-{self.training.replace(' ', '-')}"

    @property
    def policy(self) -> Speed:
        return Speed(cutoff=self.cutoff, anchors=self.anchors)

    @property
    def plan(self) -> str:
        """What it is measured under."""
        return "full" if self.cutoff == LAYERS else f"speed(cutoff={self.cutoff}, anchors={self.anchors!r})"

    @property
    def recipe(self) -> Recipe | None:
        return {"lora": LORA, "full": FULL}.get(self.training)

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "plan": self.plan}


def arms() -> list[Arm]:
    """Those that are trained first, the controls before all."""
    trained: tuple[Training, ...] = ("lora", "full")
    found = [Arm(LAYERS, "bos", training) for training in trained]
    found += [Arm(k, anchors, how) for how in trained for anchors in ("bos", "none") for k in reversed(CUTOFFS)]
    found += [Arm(k, "bos", "lora") for k in reversed(LOWER)]
    found += [Arm(LAYERS, "bos", "post hoc")]
    found += [Arm(k, anchors, "post hoc") for anchors in ("bos", "none") for k in (*LOWER, *CUTOFFS)]
    return found
