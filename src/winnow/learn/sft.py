"""Supervised fine-tuning under SPEED: a model learns to answer from prompts that stop at layer K.

The loop is `transformers.Trainer` (resuming, schedules, mixed precision, clipping, several processes), adapters are
peft's; what is Winnow's is the forward, `packed_forward`, which both of them reach as the model's own.
"""

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed

from winnow.errors import InputError, ModelError
from winnow.learn.chat import BASE, Conversation, read_conversations
from winnow.learn.directory import check_fresh, check_resumed, check_trainers, remove_checkpoints, remove_unfinished
from winnow.learn.held_out import HeldOut
from winnow.learn.journal import LOG
from winnow.learn.packed import packed_forward, packed_loss
from winnow.learn.peak import peak_bytes
from winnow.learn.recipe import ALL_LINEAR, Lora, Recipe
from winnow.learn.reference import distilled_loss
from winnow.learn.rows import segments
from winnow.learn.run import Progress, silent
from winnow.learn.run import Report as Made
from winnow.learn.saving import Result, metadata, save, write_metadata
from winnow.learn.teacher import Origin, forget_base
from winnow.models.files import os_errors
from winnow.models.packed import is_packed
from winnow.plan import Plan
from winnow.policies.compute.speed import Speed
from winnow.runtime.adapters import base_name, fingerprint, need_train_extra
from winnow.runtime.decoder import Decoder


@dataclass(frozen=True)
class Report(Made):
    """Of a run; result: as it is in the record."""

    result: Result


def train_speed(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    data: Path,
    out: Path,
    policy: Speed,
    recipe: Recipe | None = None,
    *,
    resume: bool = False,
    validation: Path | None = None,
    begin: str | None = None,
    teacher: str | None = None,
    progress: Callable[[Progress], None] = silent,
) -> Report:
    """Train a model, or LoRA adapters for it, to answer under `policy`; see `read_conversations` for the data.

    A cutoff of all layers is ordinary fine-tuning: the arm to compare others with.

    Args:
        model: trained in place where all parameters are, in float32; given back as it was where adapters are.
        out: a new or empty directory: gets the weights, `winnow.json`, a model card, `log.jsonl` and, while the run
            lasts, checkpoints.
        recipe: None: the defaults.
        resume: go on from the last checkpoint in `out`, with the same data, recipe and policy.
        validation: more data, which nothing is learnt from: the loss on it, and the KL divergence from what its teacher
            says, or where there is none the model without adapters, all layers computed, go into the log and the
            result. See `HeldOut` for its memory.
        begin: an adapter, whose weights are gone on from; as `LLM` takes one. None: fresh ones.
        teacher: an adapter that was trained at full depth, or "base", the model without any: the loss is the KL
            divergence from what it says, all layers computed, and not the cross-entropy; where a conversation says
            {"teacher": "base"}, from what the model says there. None: nobody.
        progress: called after every optimizer step.
    Raises:
        InputError: the data, the recipe, an adapter or the output directory cannot be used, or the loss is no number
            any more.
        ModelError: the weights are packed, or an adapter is none or is another model's. PlanError: the policy does not
            fit the model. MissingExtraError: peft or accelerate is not installed.
    """
    if is_packed(model):
        raise ModelError("packed weights have no gradients; load the model with weights='dense' to train it")
    need_train_extra()
    recipe = recipe or Recipe()
    decoder = Decoder(model)
    policy.validate(decoder.shape)
    if not resume:
        check_fresh(out)
    _check(model, tokenizer, policy, recipe)
    base = {"name": base_name(model), "fingerprint": fingerprint(model), "dtype": str(model.dtype)}
    origin = Origin.of(begin, teacher, model, base["fingerprint"], recipe.lora)
    longest = recipe.length or decoder.shape.max_positions
    read, about = _read(data, tokenizer, longest, policy, decoder)
    _check_taught(read, origin)
    held_out: list[Conversation] = []
    if validation is not None:
        held_out, about["validation"] = _read(validation, tokenizer, longest, policy, decoder)
    record = metadata(plan_of(policy, decoder), decoder.shape.layers, base, recipe, about) | origin.to_dict()
    checkpoint = check_resumed(out, record) if resume else None
    if checkpoint is not None:
        check_trainers(checkpoint)
    with _trainable(model, recipe, origin) as learner:
        result, main = _learn(model, learner, origin, read, held_out, policy, recipe, out, record, checkpoint, progress)
        record["result"] = dataclasses.asdict(result)
        if main:
            save(out, learner, tokenizer, record)
            remove_checkpoints(out)
    return Report(record, sorted(path.name for path in out.iterdir()), result)


def _learn(
    model: PreTrainedModel,
    learner: Any,
    origin: Origin,
    conversations: list[Conversation],
    held_out: list[Conversation],
    policy: Speed,
    recipe: Recipe,
    out: Path,
    record: dict[str, Any],
    checkpoint: Path | None,
    progress: Callable[[Progress], None],
) -> tuple[Result, bool]:
    """The loop itself: the result, and whether this is the process that writes files."""
    from winnow.learn.trainer import make_trainer
    from winnow.learn.watch import Watch

    watch = Watch(out / LOG, progress, recipe, learnt="kl" if origin.taught else "loss")
    trainer = make_trainer(learner, conversations, out, policy, recipe, watch)
    main = trainer.is_world_process_zero()
    if main:
        out.mkdir(parents=True, exist_ok=True)
        write_metadata(out, record)
    begin = time.monotonic()
    decoder = Decoder(model)  # Trainer may have moved the model: another than the one that checked it
    loss: Callable[..., Tensor] = packed_loss
    if held_out or origin.taught:
        other = origin.reference(learner, model)
    if origin.taught:
        loss = partial(distilled_loss, reference=other)
    if held_out:
        watch.judge = partial(HeldOut.of(other, policy, held_out).figures, decoder, policy)
    settings: dict[str, Any] = {"policy": policy, "checkpointing": recipe.checkpointing}
    try:
        with os_errors(out), packed_forward(decoder, partial(loss, decoder, **settings)):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except OSError:
        remove_unfinished(out)  # which would go on filling the disk
        raise
    return watch.result(trainer.state, time.monotonic() - begin, peak_bytes(decoder.device)), main


def plan_of(policy: Speed, decoder: Decoder) -> Plan:
    """The plan that a model trained under a policy is for, every parameter written out; "full" if K is all layers."""
    resolved = policy.resolved(decoder.shape)
    if resolved.cutoff == decoder.shape.layers:
        return Plan()
    return Plan(compute=resolved, written={"compute": tuple(field.name for field in dataclasses.fields(resolved))})


def _check(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, policy: Speed, recipe: Recipe) -> None:
    if recipe.lora is None and model.dtype != torch.float32:
        raise InputError(
            f"the model's weights are {model.dtype}, too coarse for small updates of all parameters; load it with "
            'dtype="float32", and use bf16 for fast matrix products; or train LoRA adapters'
        )
    if not tokenizer.chat_template and policy.decode_from == "header":
        raise InputError(
            "the model has no chat template, so answers have no header to begin with; use decode_from='last:1'"
        )


def _read(
    file: Path, tokenizer: PreTrainedTokenizerBase, longest: int, policy: Speed, decoder: Decoder
) -> tuple[list[Conversation], dict[str, Any]]:
    """The conversations of a file, checked, and what is said of it."""
    read = read_conversations(file, tokenizer, length=longest)
    _check_rows(read.items, policy, decoder)
    by_base = sum(each.teacher == BASE for each in read.items)
    about = {"file": file.name, **read.counts(), "sha256": read.sha256}
    return read.items, about | ({"by_base": by_base} if by_base else {})


def _check_taught(conversations: list[Conversation], origin: Origin) -> None:
    """A run that has a teacher is what a conversation can name another for."""
    for each in conversations:
        if each.teacher is not None and not origin.taught:
            raise InputError(f"{each.where}: a teacher, and this run has none; give it one, or leave it out")


def _check_rows(conversations: list[Conversation], policy: Speed, decoder: Decoder) -> None:
    vocab = decoder.shape.vocab
    for each in conversations:
        if each.teacher not in (None, BASE):
            raise InputError(f'{each.where}: teacher {each.teacher!r}; write "{BASE}", or leave it out')
        if (largest := max(each.ids)) >= vocab:
            raise InputError(f"{each.where}: token {largest}, and the model has {vocab}; use its own tokenizer")
        segments(each, policy.anchors, policy.decode_from)


@contextmanager
def _trainable(model: PreTrainedModel, recipe: Recipe, origin: Origin) -> Iterator[Any]:
    """The model with adapters inside, which are gone afterwards, or the model itself, all of it to be trained."""
    before = [parameter.requires_grad for parameter in model.parameters()]
    parameters = list(model.parameters())
    set_seed(recipe.seed)
    learner: Any = model.requires_grad_(True) if recipe.lora is None else _with_adapters(model, recipe.lora)
    try:
        origin.place(learner)
        yield learner
    finally:
        if recipe.lora is not None:
            learner.unload()
        for parameter, wanted in zip(parameters, before, strict=True):
            parameter.requires_grad_(wanted)
        model.eval()


def _with_adapters(model: PreTrainedModel, lora: Lora) -> Any:
    from peft import LoraConfig, TaskType, get_peft_model

    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=ALL_LINEAR if lora.targets == ALL_LINEAR else lora.modules,
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of peft about transformers
            adapted = get_peft_model(model, config)
    except ValueError as error:
        raise InputError(f"lora targets {lora.targets!r}: {error}") from error
    forget_base(adapted)
    return adapted
