"""How a model is trained: the numbers that a run can be repeated from."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from winnow.errors import InputError
from winnow.parameters import Count, wrong_type

SCHEDULES = ("cosine", "linear", "constant")  # each after a linear warm-up
ALL_LINEAR = "all-linear"
Positive = Annotated[float, Gt(0)]


def check_types(record: object) -> None:
    """Raise InputError where a field of a dataclass does not have its annotated type."""
    if problem := wrong_type(record):
        raise InputError(problem)


def require(condition: bool, message: str) -> None:
    """Raise InputError with `message`, which says what to change, unless `condition` holds."""
    if not condition:
        raise InputError(message)


class Seeded:
    """What all recipes are checked for: types, and a seed that all generators take. Raises InputError."""

    seed: int

    def __post_init__(self) -> None:
        check_types(self)
        require(0 <= self.seed < 2**32, f"seed={self.seed} must be from 0 to {2**32 - 1}")


@dataclass(frozen=True, kw_only=True)
class Logged(Seeded):
    """A run that is seen, and goes on where it was."""

    save_every: Count = 200
    """Steps between checkpoints."""
    save_minutes: Positive = 10.0
    """Minutes between checkpoints, where so many steps take longer."""
    log_every: Count = 10
    """Steps between lines of log.jsonl."""


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters (Hu et al., arXiv:2106.09685): the update is `alpha / rank * B A`, B and A of rank `rank`."""

    rank: int = 16
    """Of the update."""
    alpha: int = 32
    """The update is scaled by alpha / rank."""
    dropout: float = 0.0
    """Share of the inputs of an adapter left out in training."""
    targets: str = ALL_LINEAR
    """Linear layers, such as q_proj,v_proj; all-linear: all but the output embedding."""

    def __post_init__(self) -> None:
        check_types(self)
        require(self.rank >= 1, f"lora rank {self.rank} must be at least 1; train all parameters instead of rank 0")
        require(self.alpha >= 1, f"lora alpha {self.alpha} must be at least 1")
        require(0 <= self.dropout < 1, f"lora dropout {self.dropout} must be from 0 to below 1")
        require(all(self.modules), f"lora targets {self.targets!r}: write names like q_proj,v_proj, or {ALL_LINEAR}")

    @property
    def modules(self) -> list[str]:
        """The names in `targets`."""
        return [name.strip() for name in self.targets.split(",")]


@dataclass(frozen=True, kw_only=True)
class Recipe(Logged):
    """Same recipe, data and seed: the same batches in the same order, whatever the cutoff, so that arms compare."""

    epochs: Positive = 1.0
    """Passes over the data."""
    steps: Count | None = None
    """Instead of epochs: optimizer steps."""
    learning_rate: Positive = 2e-4
    """At its height."""
    schedule: str = "cosine"
    """cosine, linear or constant; after the warm-up."""
    warmup: float = 0.03
    """Share of the steps before the height."""
    weight_decay: Annotated[float, Ge(0)] = 0.0
    """AdamW's."""
    clip: Positive = 1.0
    """Largest norm of the gradient."""
    batch: Count = 4
    """Conversations side by side in one forward."""
    accumulate: Count = 1
    """Forwards per optimizer step."""
    length: Count | None = None
    """Leave out longer conversations, in tokens. Default: the model's positions."""
    seed: int = 0
    """Of the order of the data and of fresh adapters."""
    bf16: bool = False
    """Matrix products in bfloat16 where the device has them, weights as they are loaded."""
    checkpointing: bool = False
    """Less memory, more time."""
    validate_every: Count = 100
    """Steps between measurements on --validation."""
    lora: Lora | None = Lora()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.warmup < 1, f"warmup={self.warmup} is a share of the steps, from 0 to below 1")
        require(self.schedule in SCHEDULES, f"schedule {self.schedule!r} is unknown; use {', '.join(SCHEDULES)}")
