"""The training loop: transformers' Trainer, set up from a recipe."""

from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, Trainer, TrainingArguments

from winnow.errors import InputError
from winnow.kernels.linear import multiplied_in
from winnow.learn.chat import Conversation
from winnow.learn.recipe import Recipe
from winnow.learn.rows import Batch
from winnow.learn.watch import Watch
from winnow.policies.compute.speed import Speed

# The names of transformers' schedules; a constant one has its warm-up under another name.
SCHEDULERS = {"cosine": "cosine", "linear": "linear", "constant": "constant_with_warmup"}


def make_trainer(
    learner: Any,
    conversations: list[Conversation],
    out: Path,
    policy: Speed,
    recipe: Recipe,
    watch: Watch,
) -> Trainer:
    """A trainer of `learner`, a model or a PeftModel, on conversations laid flat; its forward is `packed_forward`.

    Raises InputError where one process sees several GPUs.
    """
    arguments = _arguments(recipe, out, learner.device.type)
    if arguments.n_gpu > 1:
        raise InputError(
            f"{arguments.n_gpu} GPUs are seen by one process; start one process per GPU with torchrun, or show it one "
            "with CUDA_VISIBLE_DEVICES"
        )

    def collate(items: list[Conversation]) -> dict[str, Any]:
        return vars(Batch.of(items, policy.anchors, policy.decode_from))

    trainer = Trainer(
        learner,
        arguments,
        data_collator=collate,
        train_dataset=conversations,
        callbacks=[watch],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.model_accepts_loss_kwargs = True  # our forward divides by the tokens of all accumulated batches
    return trainer


def _arguments(recipe: Recipe, out: Path, device: str) -> TrainingArguments:
    on_cpu = device == "cpu"
    return TrainingArguments(
        output_dir=str(out),
        use_cpu=on_cpu,
        bf16=recipe.bf16 and multiplied_in(torch.bfloat16, device) == torch.bfloat16,
        num_train_epochs=recipe.epochs,
        max_steps=recipe.steps or -1,
        per_device_train_batch_size=recipe.batch,
        gradient_accumulation_steps=recipe.accumulate,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type=SCHEDULERS[recipe.schedule],
        warmup_steps=recipe.warmup,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.clip,
        seed=recipe.seed,
        data_seed=recipe.seed,
        save_strategy="steps",
        save_steps=recipe.save_every,
        save_total_limit=1,
        logging_steps=recipe.log_every,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        include_num_input_tokens_seen="all",
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_pin_memory=not on_cpu,
        disable_tqdm=True,
        report_to="none",
    )
