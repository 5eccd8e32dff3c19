"""Adapters that a run begins with, and what it learns from where that is what another says."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from winnow.errors import InputError, ModelError
from winnow.learn.packed import packed_logits
from winnow.learn.recipe import Lora
from winnow.learn.rows import Batch
from winnow.policies.compute.speed import Speed
from winnow.runtime.adapters import ADAPTER_WEIGHTS, asked_name, find_adapter, read_metadata
from winnow.runtime.decoder import Decoder

BASE = "base"  # as a teacher: the model without any adapter
LEARNER, TEACHER = "default", "teacher"  # what peft calls the adapter that learns, and the one that teaches


@dataclass(frozen=True)
class Given:
    """An adapter of the model that is trained. name: as it was asked for; sha256: of its weights; plan: what it was
    trained for, None where that is not known."""

    name: str
    directory: Path
    sha256: str
    plan: str | None

    @classmethod
    def of(cls, source: str, base: dict[str, str]) -> "Given":
        """base: name and fingerprint of the model. Raises ModelError where it is none, or another model's."""
        directory, name = find_adapter(source), asked_name(source)
        record = read_metadata(directory)
        if record is not None and record["base"]["fingerprint"] != base["fingerprint"]:
            raise ModelError(
                f"the adapter {name} was trained on {record['base']['name']}, and this model, {base['name']}, has "
                "other weights; give one of this model"
            )
        digest = hashlib.sha256((directory / ADAPTER_WEIGHTS).read_bytes()).hexdigest()
        return cls(name, directory, digest, None if record is None else record["plan"])

    def weights(self) -> dict[str, Tensor]:
        from peft.utils import load_peft_weights

        return dict(load_peft_weights(str(self.directory), device="cpu"))


@dataclass(frozen=True)
class Origin:
    """What a run begins with and whom it learns from. begin: None: fresh weights. taught: whether by a teacher; which
    is the model without adapters where `teacher` is None."""

    begin: Given | None = None
    teacher: Given | None = None
    taught: bool = False

    @classmethod
    def of(cls, begin: str | None, teacher: str | None, base: dict[str, str], lora: Lora | None) -> "Origin":
        """Raises InputError where all parameters are trained, or where a teacher was not trained at full depth, and
        ModelError like `Given`."""
        if lora is None and (begin, teacher) != (None, None):
            raise InputError("an adapter to begin with, and a teacher, are about adapters, not about all parameters")
        begun = None if begin is None else Given.of(begin, base)
        teaches = None if teacher in (None, BASE) else Given.of(str(teacher), base)
        if teaches is not None and teaches.plan not in (None, "full"):
            raise InputError(
                f"the adapter {teaches.name} was trained for {teaches.plan}, and a teacher computes all layers; give "
                f"one that was trained with --cutoff 1.0, or {BASE}"
            )
        return cls(begun, teaches, teacher is not None)

    def to_dict(self) -> dict[str, str]:
        """For a record: names, and what tells others of the same name apart."""
        given = {"begin": self.begin, "teacher": self.teacher}
        told = {name: f"{each.name}, SHA-256 {each.sha256}" for name, each in given.items() if each is not None}
        return {"teacher": BASE} | told if self.taught else told

    def place(self, learner: Any, lora: Lora) -> None:
        """Give `learner`, a PeftModel, the weights to begin with, and put the teacher's beside them.

        Raises InputError where those to begin with have other settings than `lora`.
        """
        if self.begin is not None:
            _begin(learner, self.begin, lora)
        if self.teacher is not None:
            learner.load_adapter(str(self.teacher.directory), adapter_name=TEACHER)
            learner.peft_config[TEACHER].base_model_name_or_path = None  # or every checkpoint looks it up on the hub
            learner.set_adapter(LEARNER)

    def compared(self, learner: Any, model: PreTrainedModel) -> Decoder:
        """What `learner`, of `model` or the model itself, is compared with: the model without adapters, or with the
        teacher's. Which of them are in force is fixed as the decoder is made."""
        if learner is model:
            return Decoder(model)
        with learner.disable_adapter() if self.teacher is None else _taught(learner):
            found = Decoder(model)
        found.tree.eval()
        return found


@contextmanager
def _taught(learner: Any) -> Iterator[None]:
    learner.set_adapter(TEACHER, inference_mode=True)
    try:
        yield
    finally:
        learner.set_adapter(LEARNER)


def _begin(learner: Any, given: Given, lora: Lora) -> None:
    from peft import PeftConfig, get_peft_model_state_dict, set_peft_model_state_dict

    settings: Any = PeftConfig.from_pretrained(str(given.directory))
    if (settings.r, settings.lora_alpha) != (lora.rank, lora.alpha):
        raise InputError(
            f"the adapter {given.name} has rank {settings.r} and alpha {settings.lora_alpha}, and what begins with it "
            f"has rank {lora.rank} and alpha {lora.alpha}; give --lora.rank {settings.r} --lora.alpha "
            f"{settings.lora_alpha}"
        )
    weights = given.weights()
    if weights.keys() != get_peft_model_state_dict(learner, save_embedding_layers=False).keys():
        raise InputError(f"the adapter {given.name} has other targets than {lora.targets}; give its own")
    set_peft_model_state_dict(learner, weights)


def distilled_loss(
    decoder: Decoder, batch: Batch, policy: Speed, teacher: Decoder, *, checkpointing: bool = False
) -> Tensor:
    """The sum over supervised tokens of the KL divergence from what the teacher, all layers computed, says there.

    Source: Hinton, Vinyals and Dean, arXiv:1503.02531, at a temperature of 1 and without the labels.
    """
    with torch.no_grad():
        wanted = packed_logits(teacher, batch, replace(policy, cutoff=1.0)).log_softmax(-1)
    said = packed_logits(decoder, batch, policy, checkpointing=checkpointing).log_softmax(-1)
    return F.kl_div(said, wanted, reduction="sum", log_target=True)
