"""The files that arms load the same weights from."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from winnow.bench.peers.base import Arm
from winnow.bench.peers.gguf_file import check_gguf, write_gguf


@dataclass(frozen=True)
class Weights:
    """directory: as `save_pretrained` writes it; gguf: a file, None where no arm needs it; dtype: of both, by name."""

    directory: Path
    gguf: Path | None
    dtype: str

    def of(self, arm: Arm) -> str:
        return str(self.gguf if arm.gguf else self.directory)


@contextmanager
def weights_of(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, arms: Sequence[Arm]
) -> Iterator[Weights]:
    """Written to a temporary directory, as large as the model, that goes at the end.

    What is written is the loaded model, so that adapters and a dtype asked for reach every arm alike.
    Raises MissingExtraError or UnsupportedModelError where an arm needs a GGUF file that cannot be written.
    """
    if wants_gguf := any(arm.gguf for arm in arms):
        check_gguf(model.config)
    with tempfile.TemporaryDirectory(prefix="winnow-peers-") as name:
        directory = Path(name) / "model"
        model.save_pretrained(directory)
        if tokenizer is not None:
            tokenizer.save_pretrained(directory)
        gguf = Path(name) / "model.gguf" if wants_gguf else None
        if gguf is not None:
            write_gguf(model, gguf)
        dtype = str(model.dtype).removeprefix("torch.")
        del model  # the caller may let go of it too
        yield Weights(directory, gguf, dtype)
