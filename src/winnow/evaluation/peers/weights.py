"""The files that arms load the same weights from."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from winnow.evaluation.peers.base import DIRECTORY, GGUF, SOURCE, Arm
from winnow.evaluation.peers.gguf_file import check_gguf, write_gguf
from winnow.evaluation.peers.process import Worker
from winnow.models.files import os_errors
from winnow.runtime.llm import LLM

Say = Callable[[str], None]


def unsaid(text: str) -> None:
    """No progress report."""


@dataclass(frozen=True)
class Weights:
    """paths: by what arms load, see `Arm.loads`; dtype: of dense weights and of units, by name."""

    paths: Mapping[str, Path]
    dtype: str

    def of(self, arm: Arm) -> str:
        return str(self.paths[arm.loads])


@contextmanager
def weights_of(llm: LLM, arms: Sequence[Arm], say: Say = unsaid) -> Iterator[Weights]:
    """Those of a loaded model: the GGUF file it comes from, or what is loaded, written as arms need it.

    What is made lies in a temporary directory, as large as the model in each format, that goes at the end. say: called
    with a line before each thing that takes a while.
    Raises UnsupportedModelError where an arm needs a GGUF file that cannot be written, InputError where llama.cpp
    cannot make a format of it.
    """
    wanted, dtype = {arm.loads for arm in arms}, str(llm.dtype).removeprefix("torch.")
    if from_loaded := llm.source is None and bool(wanted - {SOURCE, DIRECTORY}):
        check_gguf(llm.model.config)
    with tempfile.TemporaryDirectory(prefix="winnow-peers-") as name:
        made = Path(name)
        paths = {} if llm.source is None else {SOURCE: llm.source, GGUF: llm.source}
        if llm.source is None or DIRECTORY in wanted:
            say("writing the dense weights")
            paths = {SOURCE: made / "model", **paths, DIRECTORY: made / "model"}
            dense = llm.dense()
            _save(dense, llm.tokenizer, paths[DIRECTORY])
            if from_loaded:
                paths[GGUF] = made / "model.gguf"
                write_gguf(dense, paths[GGUF])
            del dense
        del llm  # the caller may let go of it too
        for arm in arms:
            if arm.loads not in paths:
                say(f"llama.cpp makes {arm.loads} of {paths[GGUF].name}")
                paths[arm.loads] = _converted(arm, paths[GGUF], made)
        yield Weights(paths, dtype)


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, directory: Path) -> None:
    with os_errors(directory):
        model.save_pretrained(directory)
        if tokenizer is not None:
            tokenizer.save_pretrained(directory)


def _converted(arm: Arm, source: Path, into: Path) -> Path:
    """`source` in the format that `arm` loads, made by its own library."""
    threads, target = torch.get_num_threads(), into / f"{arm.loads}.gguf"
    with Worker(arm, threads=threads) as worker:
        worker.require("check", threads=threads, device="cpu", **arm.options)
        worker.require("convert", source=str(source), target=str(target), kind=arm.loads)
    return target
