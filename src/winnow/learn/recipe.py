"""How a model is trained: the numbers that a run can be repeated from."""

from dataclasses import dataclass

from winnow.errors import InputError
from winnow.parameters import wrong_type

SCHEDULES = ("cosine", "linear", "constant")  # each after a linear warm-up
ALL_LINEAR = "all-linear"


def check_types(record: object) -> None:
    """Raise InputError where a field of a dataclass does not have its annotated type."""
    if problem := wrong_type(record):
        raise InputError(problem)


def require(condition: bool, message: str) -> None:
    """Raise InputError with `message`, which says what to change, unless `condition` holds."""
    if not condition:
        raise InputError(message)


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters (Hu et al., arXiv:2106.09685): the update is `alpha / rank * B A`, B and A of rank `rank`.

    targets: names of linear layers joined by commas, or "all-linear" for all of them but the output embedding.
    """

    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0
    targets: str = ALL_LINEAR

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
class Recipe:
    """Same recipe, data and seed: the same batches in the same order, whatever the cutoff, so that arms compare.

    epochs: passes over the data; steps: instead, optimizer steps.
    learning_rate: at its height; schedule: of "cosine", "linear" and "constant"; warmup: share of the steps before the
        height; weight_decay: AdamW's; clip: largest norm of a gradient.
    batch: conversations laid side by side in one forward, per process; accumulate: forwards per optimizer step.
    length: conversations of more tokens are left out; None: the model's positions.
    seed: of the order of conversations and of fresh adapters.
    bf16: matrix products in bfloat16, weights as they are loaded. checkpointing: less memory, more time.
    save_every, log_every: in optimizer steps.
    lora: adapters to train; None: all parameters.
    """

    epochs: float = 1.0
    steps: int | None = None
    learning_rate: float = 2e-4
    schedule: str = "cosine"
    warmup: float = 0.03
    weight_decay: float = 0.0
    clip: float = 1.0
    batch: int = 4
    accumulate: int = 1
    length: int | None = None
    seed: int = 0
    bf16: bool = False
    checkpointing: bool = False
    save_every: int = 200
    log_every: int = 10
    lora: Lora | None = Lora()

    def __post_init__(self) -> None:
        check_types(self)
        require(self.epochs > 0, f"epochs={self.epochs} must be above 0")
        for name in ("steps", "batch", "accumulate", "length", "save_every", "log_every"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name}={value} must be at least 1")
        for name in ("learning_rate", "clip"):
            require(getattr(self, name) > 0, f"{name}={getattr(self, name)} must be above 0")
        require(0 <= self.seed < 2**32, f"seed={self.seed} must be from 0 to {2**32 - 1}")
        require(self.weight_decay >= 0, f"weight_decay={self.weight_decay} must be at least 0")
        require(0 <= self.warmup < 1, f"warmup={self.warmup} is a share of the steps, from 0 to below 1")
        require(self.schedule in SCHEDULES, f"schedule {self.schedule!r} is unknown; use {', '.join(SCHEDULES)}")
