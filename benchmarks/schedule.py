"""Pruning schedules of `lazyllm` for a wanted cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from winnow.errors import InputError
from winnow.policies.base import ModelShape
from winnow.policies.compute.schedule import last_layer, preset_layers, rows_per_layer


def flops(rows: Sequence[int], shape: ModelShape) -> float:
    """The operations of all layers with `rows[l]` active tokens each, in FastV's form (arXiv:2403.06764, section 4.2).

    Per layer 4 n D^2 + 2 n^2 D + 3 n D M, with hidden width D and a gated MLP of width M; good for ratios.
    """
    width, mlp = shape.hidden, shape.mlp
    return float(sum(4 * n * width**2 + 2 * n**2 * width + 3 * n * width * mlp for n in rows))


@dataclass(frozen=True)
class Proposal:
    """A schedule and what it costs in prefill, as shares of full attention; counted, not timed.

    rows: of the layer-token rows; flops: of the operations. The time to the first token falls between the two.
    """

    layers: tuple[int, ...]
    keep: tuple[float, ...]
    rows: float
    flops: float

    @property
    def plan(self) -> str:
        """The plan's text."""
        return f"lazyllm(layers={list(self.layers)}, keep={list(self.keep)})"


def propose(
    shape: ModelShape,
    prompt: int,
    *,
    rows: float | None = None,
    flops: float | None = None,
    speedup: float | None = None,
) -> Proposal:
    """The mildest schedule that computes at most a share `rows` or `flops`, or 1/`speedup` of the rows.

    Stages are the preset's; the survivors shrink by the same factor at each, so that earlier layers keep more, and
    never below 2 % of the prompt. Raises InputError where that cannot be reached on this model.
    """
    if sum(wanted is not None for wanted in (rows, flops, speedup)) != 1:
        raise InputError("give one of rows, flops and speedup")
    if speedup is not None and speedup < 1:
        raise InputError(f"speedup={speedup} must be at least 1")
    target = 1 / speedup if speedup else rows if rows is not None else flops
    if target is None or not 0 < target <= 1:
        raise InputError(f"a share of {target} must be above 0 and at most 1")
    cheapest = None
    for shift in (0, 1, 2, 3):  # the stages as they are, then each time a layer earlier
        layers = preset_layers(shape, last_layer(shape), shift)
        for percent in range(100, 0, -1):
            found = _cost(shape, prompt, layers, percent / 100)
            if found is None:
                break
            cheapest = found
            if (found.flops if flops is not None else found.rows) <= target + 1e-9:
                return found
    if cheapest is None:
        raise InputError(f"a model of {shape.layers} layers has no layer at which parking tokens saves memory")
    what = cheapest.flops if flops is not None else cheapest.rows
    raise InputError(f"no schedule computes {target:.3f} on this model; the least is {what:.3f}, {cheapest.plan}")


def _cost(shape: ModelShape, prompt: int, layers: tuple[int, ...], keep: float) -> Proposal | None:
    """The same `keep` at each of `layers`; None where less than 2 % would be left."""
    if not layers or keep ** len(layers) < 0.02:
        return None
    keeps = (keep,) * len(layers)
    counts = rows_per_layer(prompt, shape.layers, layers, keeps)
    whole = [prompt] * shape.layers
    share = flops(counts, shape) / flops(whole, shape)
    return Proposal(layers, keeps, sum(counts) / sum(whole), share)
