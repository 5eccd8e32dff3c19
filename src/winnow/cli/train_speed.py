"""`winnow train speed`: a model, or an adapter for one, that answers from prompts that stop at layer K."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch

from winnow.cli.commands.train import Speed
from winnow.cli.training import left_out, memory, train
from winnow.devices import parse_device
from winnow.errors import InputError
from winnow.kernels.linear import multiplied_in
from winnow.learn.recipe import Lora
from winnow.learn.sft import Report, train_speed
from winnow.policies.compute.speed import Speed as SpeedPolicy
from winnow.runtime.adapters import need_train_extra


def speed(options: Speed) -> int:
    """Train a model for prompts that stop at layer K; returns the exit code."""
    recipe = options.recipe
    if options.full and (recipe.lora != Lora() or options.begin or options.teacher):
        raise InputError("--lora.*, --begin and --teacher are about adapters, not about --full; leave them out")
    recipe = replace(recipe, lora=None) if options.full else recipe
    policy = SpeedPolicy(
        cutoff=options.cutoff, anchors=options.anchors, decode_from=options.decode_from, self_only=options.self_only
    )
    need_train_extra()
    # Adapters learn over weights as they are, but where products of bfloat16 would take longer than of float32.
    slow = multiplied_in(torch.bfloat16, parse_device(options.device).type) != torch.bfloat16
    llm = options.load_floats(dtype=options.dtype or ("float32" if options.full or slow else None))
    if (tokenizer := llm.tokenizer) is None:
        raise InputError("the model has no tokenizer, so it cannot read text; give a directory with a tokenizer.json")
    run = partial(
        train_speed, llm.model, tokenizer, options.data, options.out, policy, recipe, resume=options.resume,
        validation=options.validation, begin=options.begin, teacher=options.teacher,
    )  # fmt: skip
    use = f"use it: --{'model' if options.full else 'adapter'} {options.out}"
    return train(
        "train speed",
        options,
        lambda progress: run(progress=progress),
        _told,
        use,
    )


def _told(made: Report) -> tuple[str, Mapping[str, str]]:
    """What was made, from what, at what cost."""
    result, data = made.result, made.record["data"]
    taught = "teacher" in made.record
    other, learnt = ("its teacher", "KL from its teacher") if taught else ("the model as it was", "loss")
    told = f"loss {{loss:.4f}} nats per supervised token, KL {{kl:.4f}} from {other}"
    held_out = {"held out": told.format(**result.held_out)} if result.held_out else {}
    return made.record["plan"], {
        f"{learnt}, first": f"{result.loss_first:.4f} nats per supervised token",
        f"{learnt}, last": f"{result.loss_last:.4f}",
        **held_out,
        "steps": f"{result.steps:,}",
        "tokens": f"{result.tokens:,}",
        "conversations": f"{data['conversations']:,}{left_out(data)}",
        "time": f"{result.seconds:.1f} s",
        "memory": memory(result.peak_bytes),
    }
