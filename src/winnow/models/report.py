"""How a model's weights are held: in which form, in how many bytes, and what computes with them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from torch import Tensor, nn

from winnow.kernels.linear import MAX_ROWS, available
from winnow.kernels.packed import PackedWeight, why_slow
from winnow.models.packed import PackedLinear, named_weights, packed_modules


@dataclass(frozen=True)
class HeldWeights:
    """Weights that are held alike. what: their part in the model and their form, such as "linear, 4 bit, groups of 32,
    minima". bits: of a packed value, None for floats. type: in the file, such as Q4_1; None where it is not known.
    tensors, values, bytes: how many; a tensor that modules share counts once. kernel: what computes with them."""

    what: str
    bits: int | None
    type: str | None
    tensors: int
    values: int
    bytes: int
    kernel: str


@dataclass(frozen=True)
class WeightsReport:
    """rows: the most bytes first. file_bytes: of the files they were read from, None for a model that came loaded.
    crossover: up to how many rows a packed weight is multiplied as it is, by its form, as measured when the model was
    loaded; more rows are multiplied with the weight expanded to floats."""

    rows: tuple[HeldWeights, ...]
    file_bytes: int | None
    crossover: dict[str, int]

    @property
    def bytes(self) -> int:
        return sum(row.bytes for row in self.rows)

    @property
    def packed_bytes(self) -> int:
        return sum(row.bytes for row in self.rows if row.bits is not None)

    @property
    def packed_bits(self) -> tuple[int, ...]:
        """How many bits packed values have, each number once."""
        return tuple(sorted({row.bits for row in self.rows if row.bits is not None}))


def weights_report(
    model: nn.Module, types: Mapping[str, str] | None = None, file_bytes: int | None = None
) -> WeightsReport:
    """How the weights of `model` are held. types: of tensors in the file, by their names in the model."""
    users: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for data in _tensors_of(module):
            users.setdefault(data.data_ptr(), []).append(module)
    alike: dict[HeldWeights, HeldWeights] = {}
    for one in _each(model, users, types or {}):
        key = replace(one, tensors=0, values=0, bytes=0)
        sums = alike.get(key, key)
        alike[key] = replace(
            one, tensors=sums.tensors + 1, values=sums.values + one.values, bytes=sums.bytes + one.bytes
        )
    linears = [module for _, module in packed_modules(model) if isinstance(module, PackedLinear)]
    crossover = {form_of(module.packed): module.few for module in linears}
    return WeightsReport(tuple(sorted(alike.values(), key=lambda row: -row.bytes)), file_bytes, crossover)


def _each(model: nn.Module, users: dict[int, list[nn.Module]], types: Mapping[str, str]) -> Iterator[HeldWeights]:
    """Every tensor by itself. users: the modules that hold a tensor, by its address."""
    for name, weight in named_weights(model):
        mine = users[weight.data.data_ptr()]
        what = f"{_role(mine, weight.data)}, {form_of(weight)}"
        bits = weight.bits if isinstance(weight, PackedWeight) else None
        values, kernel = prod(weight.shape), _kernel(mine, weight)
        yield HeldWeights(what, bits, types.get(name), 1, values, weight.data.nbytes, kernel)
    for _, module in packed_modules(model):
        for tensor in getattr(module, "low_rank", None) or ():
            yield HeldWeights(
                f"adapter, {form_of(tensor)}", None, None, 1, tensor.numel(), tensor.nbytes, "its layer's"
            )


def form_of(weight: PackedWeight | Tensor) -> str:
    """How it is held: "4 bit, groups of 32, minima" or "bfloat16"."""
    if isinstance(weight, PackedWeight):
        return f"{weight.bits} bit, groups of {weight.group}{', minima' if weight.minima else ''}"
    return str(weight.dtype).removeprefix("torch.")


def _tensors_of(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters(recurse=False)
    if isinstance(packed := getattr(module, "packed", None), PackedWeight):
        yield packed.data


def _role(users: list[nn.Module], data: Tensor) -> str:
    """What the modules that share a tensor are to the model."""
    if data.ndim < 2:
        return "norms and biases"
    linear = any(isinstance(user, (nn.Linear, PackedLinear)) for user in users)
    if any(isinstance(user, nn.Embedding) or hasattr(user, "num_embeddings") for user in users):
        return "embedding and head" if linear else "embedding"
    return "linear" if linear else "other"


def _kernel(users: list[nn.Module], weight: PackedWeight | Tensor) -> str:
    linear = next((user for user in users if isinstance(user, (nn.Linear, PackedLinear))), None)
    if isinstance(weight, PackedWeight):
        if why_slow(weight) is not None:
            return "expanded by torch"
        few = linear.few if isinstance(linear, PackedLinear) else 0
        return f"Numba, up to {few} rows multiplied packed" if few else "Numba, expanded"
    if linear is None or weight.ndim < 2 or available(weight) is not None:
        return "torch"
    return f"Numba {form_of(weight)} up to {MAX_ROWS} rows, then torch"
