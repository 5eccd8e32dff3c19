"""Gates of a model's heads: those of another one are refused."""

from pathlib import Path

from transformers import PreTrainedModel

from winnow.errors import ModelError
from winnow.models.head_gates import HeadGates, read_gates
from winnow.runtime.adapters import base_name, dtype_hint, fingerprint


def load_gates(directory: str | Path, model: PreTrainedModel) -> HeadGates:
    """Gates for a model. Raises ModelError where there are none, they are damaged, or another model's."""
    found = read_gates(directory)
    if found.fingerprint != fingerprint(model):
        raise ModelError(
            f"the gates {directory} were trained on {found.base}, and this model, {base_name(model)}, has other "
            f"weights, perhaps an adapter's; train its own with: winnow train duo{dtype_hint(model)}"
        )
    return found
