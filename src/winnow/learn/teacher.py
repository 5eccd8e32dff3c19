"""Adapters that a run begins with, and what it learns from where that is what another says."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from transformers import PreTrainedModel

from winnow.errors import InputError, ModelError
from winnow.learn.chat import BASE
from winnow.learn.recipe import Lora
from winnow.learn.reference import Reference
from winnow.models.low_rank import plain_pairs
from winnow.runtime.adapters import (
    ADAPTER_WEIGHTS,
    adapter_fingerprint,
    asked_name,
    find_adapter,
    record_for,
)
from winnow.runtime.decoder import Decoder

WANTED = "a training begins with plain LoRA adapters, and is taught by such"
LEARNER, TEACHER = "default", "teacher"  # what peft calls the adapter that learns, and the one that teaches


@dataclass(frozen=True)
class Given:
    """An adapter of the model that is trained, plain LoRA. name: as it was asked for; fingerprint: of the two; plan:
    what it was trained for, None where that is not known; settings: peft's."""

    name: str
    directory: Path
    fingerprint: str
    plan: str | None
    settings: dict[str, Any]

    @classmethod
    def of(cls, source: str, model: PreTrainedModel, without: str) -> "Given":
        """without: the fingerprint of the model. Raises ModelError where it is none, another model's, or another kind
        of adapter."""
        directory, name = find_adapter(source), asked_name(source)
        record = record_for(model, without, directory, name)
        settings, _ = plain_pairs(model, directory, WANTED)
        if (bias := settings.get("bias", "none")) != "none":
            raise ModelError(f"the adapter {name} sets bias {bias!r}, which changes the model; {WANTED}")
        for key in ("use_rslora", "rank_pattern", "alpha_pattern"):
            if settings.get(key):
                raise ModelError(f"the adapter {name} sets {key}; {WANTED}")
        both = adapter_fingerprint(without, directory)
        return cls(name, directory, both, None if record is None else record["plan"], settings)


@dataclass(frozen=True)
class Origin:
    """What a run begins with and whom it learns from. begin: None: fresh weights. taught: whether by a teacher; which
    is the model without adapters where `teacher` is None."""

    begin: Given | None = None
    teacher: Given | None = None
    taught: bool = False

    @classmethod
    def of(
        cls,
        begin: str | None,
        teacher: str | None,
        model: PreTrainedModel,
        without: str,
        lora: Lora | None,
    ) -> "Origin":
        """Raises InputError where all parameters are trained, where a teacher was not trained at full depth, or where
        what is begun with has other settings than `lora`, and ModelError like `Given`."""
        if lora is None and (begin, teacher) != (None, None):
            raise InputError("an adapter to begin with, and a teacher, are about adapters, not about all parameters")
        begun = None if begin is None else Given.of(begin, model, without)
        teaches = None if teacher in (None, BASE) else Given.of(str(teacher), model, without)
        if begun is not None and lora is not None:
            _check_alike(begun, lora)
        if teaches is not None and teaches.plan not in (None, "full"):
            raise InputError(
                f"the adapter {teaches.name} was trained for {teaches.plan}, and a teacher computes all layers; give "
                f"one that was trained with --cutoff 1.0, or {BASE}"
            )
        return cls(begun, teaches, teacher is not None)

    def to_dict(self) -> dict[str, str]:
        """For a record: names, and what tells others of the same name apart."""
        given = {"begin": self.begin, "teacher": self.teacher}
        told = {
            name: f"{each.name}, fingerprint {each.fingerprint}" for name, each in given.items() if each is not None
        }
        return {"teacher": BASE} | told if self.taught else told

    def place(self, learner: Any) -> None:
        """Give `learner`, a PeftModel, the weights to begin with, and put the teacher's beside them.

        Raises InputError where those to begin with are for other layers.
        """
        if self.begin is not None:
            _begin(learner, self.begin)
        if self.teacher is not None:
            learner.load_adapter(str(self.teacher.directory), adapter_name=TEACHER)
            learner.set_adapter(LEARNER)
            forget_base(learner)

    def reference(self, learner: Any, model: PreTrainedModel) -> Reference:
        """What `learner`, of `model` or the model itself, is compared with. Which adapters are in force is fixed as a
        decoder is made."""
        with nullcontext() if learner is model else learner.disable_adapter():
            base = Decoder(model)
        if self.teacher is None:
            return Reference(base, base)
        with _taught(learner):
            return Reference(Decoder(model), base)


@contextmanager
def _taught(learner: Any) -> Iterator[None]:
    learner.set_adapter(TEACHER, inference_mode=True)
    try:
        yield
    finally:
        learner.set_adapter(LEARNER)


def forget_base(learner: Any) -> None:
    """Let no adapter of `learner` name its model, or peft looks the name up on the hub as it saves a checkpoint."""
    for config in getattr(learner, "peft_config", {}).values():
        config.base_model_name_or_path = None


def _check_alike(given: Given, lora: Lora) -> None:
    rank, alpha = given.settings.get("r"), given.settings.get("lora_alpha")
    if (rank, alpha) != (lora.rank, lora.alpha):
        raise InputError(
            f"the adapter {given.name} has rank {rank} and alpha {alpha}, and what begins with it has rank {lora.rank} "
            f"and alpha {lora.alpha}; give --lora.rank {rank} --lora.alpha {alpha}"
        )


def _begin(learner: Any, given: Given) -> None:
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    weights = load_file(given.directory / ADAPTER_WEIGHTS)
    if weights.keys() != get_peft_model_state_dict(learner, save_embedding_layers=False).keys():
        targets = ",".join(sorted({key.split(".lora_")[0].rpartition(".")[2] for key in weights}))
        raise InputError(f"the adapter {given.name} is for other layers; give its own: --lora.targets {targets}")
    set_peft_model_state_dict(learner, weights)
