"""How retaining heads are trained: the numbers that a run can be repeated from."""

from dataclasses import dataclass

from winnow.learn.recipe import check_types, require


@dataclass(frozen=True, kw_only=True)
class HeadsRecipe:
    """The defaults are Locret's (arXiv:2410.01805, appendix A, and the authors' code), but for `bf16`.

    width: of the heads' hidden layer. steps: one sample each; learning_rate: at its height, after a linear rise that
        takes a share `warmup` of the steps and begins with 0; then it falls linearly.
    length: tokens of a prompt that are learnt, the first ones.
    smoothing: weight of the squared difference of neighbouring scores. clip: the largest absolute value of a gradient.
    seed: of new heads and of the order of samples.
    bf16: the large matrix products in bfloat16, weights in float32.
    save_every, log_every, validate_every: in steps.
    """

    width: int = 1024
    steps: int = 3000
    learning_rate: float = 5e-4
    warmup: float = 2 / 3
    length: int = 10240
    smoothing: float = 0.0025
    clip: float = 0.5
    seed: int = 0
    bf16: bool = False
    save_every: int = 200
    log_every: int = 10
    validate_every: int = 500

    def __post_init__(self) -> None:
        check_types(self)
        least = {"width": 1, "steps": 2, "length": 2, "save_every": 1, "log_every": 1, "validate_every": 1}
        for name, bound in least.items():
            require(getattr(self, name) >= bound, f"{name}={getattr(self, name)} must be at least {bound}")
        for name in ("learning_rate", "clip"):
            require(getattr(self, name) > 0, f"{name}={getattr(self, name)} must be above 0")
        require(0 <= self.seed < 2**32, f"seed={self.seed} must be from 0 to {2**32 - 1}")
        require(self.smoothing >= 0, f"smoothing={self.smoothing} must be at least 0")
        require(0 <= self.warmup < 1, f"warmup={self.warmup} is a share of the steps, from 0 to below 1")

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        rise = min(round(self.warmup * self.steps), self.steps - 1)
        share = step / rise if step < rise else (self.steps - step) / (self.steps - rise)
        return self.learning_rate * share
