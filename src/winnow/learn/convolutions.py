"""Training of LoCoCo's convolutions: a frozen model predicts texts from a cache of fixed size, whose sums learn."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from winnow.errors import InputError, ModelError
from winnow.learn.convolutions_learner import ConvolutionsLearner, policy_of
from winnow.learn.convolutions_recipe import ConvolutionsRecipe
from winnow.learn.directory import check_fresh, check_resumed, remove_checkpoints
from winnow.learn.heads_files import LIBRARIES
from winnow.learn.journal import LOG, Journal, load_checkpoint, save_checkpoint, start_log
from winnow.learn.samples import read_samples, sample_order
from winnow.learn.saving import metadata, write_metadata
from winnow.models.packed import is_packed
from winnow.plan import Plan
from winnow.runtime.convolutions import Convolutions, ConvolutionsConfig
from winnow.runtime.llm import LLM

FAR = 2**40  # tokens of a text that has no end


@dataclass(frozen=True)
class ConvolutionsProgress:
    """Where a run is. step of steps; tokens: read so far; loss: of the last log line, None before it."""

    step: int
    steps: int
    tokens: int
    loss: float | None


@dataclass(frozen=True)
class ConvolutionsReport:
    """What a run came to; record: what is in `winnow.json`; files: in the output directory."""

    record: dict[str, Any]
    files: list[str]


def train_convolutions(
    llm: LLM,
    data: Path,
    out: Path,
    recipe: ConvolutionsRecipe | None = None,
    *,
    resume: bool = False,
    progress: Callable[[ConvolutionsProgress], None] = lambda progress: None,
) -> ConvolutionsReport:
    """Train the convolutions of `lococo` for a model; see `read_conversations` for the data, of which every token that
    follows a compressed cache is predicted.

    Args:
        llm: the model, which stays as it is, and its tokenizer.
        out: a new or empty directory: gets the convolutions, their config, a model card, `winnow.json`, `log.jsonl`
            and, while the run lasts, a checkpoint.
        recipe: None: the defaults.
        resume: go on from the last checkpoint in `out`, with the same data and recipe.
        progress: called after every step.
    Raises:
        InputError: the data, the recipe or the output directory cannot be used, or the loss is no number any more.
        ModelError: the weights are packed, or all layers have sliding windows, of which there are no sums.
    Source:
        Cai et al., LoCoCo, arXiv:2406.05317, and the authors' code, whose norms and embeddings are trained as well:
        here the model is frozen, so that what is trained can be left out and taken with any plan.
    """
    recipe = recipe or ConvolutionsRecipe()
    policy = policy_of(recipe)
    if is_packed(llm.model):
        raise ModelError("packed weights have no gradients; load the model with weights='dense' to train with it")
    if not any(policy.pattern(layer).held for layer in llm.decoder.shape.contexts):
        raise ModelError("all layers of the model have sliding windows, and lococo leaves these as they are")
    if not resume:
        check_fresh(out)
    texts, about = read_texts(llm, data, recipe)
    config = ConvolutionsConfig.of(llm.model, llm.decoder.shape, recipe.sums, recipe.kernel)
    base = {"name": config.base, "fingerprint": config.fingerprint}
    record = metadata(Plan(keep=policy), config.layers, base, recipe, about, libraries=LIBRARIES)
    checkpoint = check_resumed(out, record) if resume else None
    learner = ConvolutionsLearner(Convolutions.random(config, recipe.seed, device=llm.device), recipe)
    journal = Journal() if checkpoint is None else load_checkpoint(checkpoint, learner, llm.device)
    out.mkdir(parents=True, exist_ok=True)
    write_metadata(out, record)
    record["result"] = _learn(llm, learner, out, journal, texts, progress)
    _save(out, learner.convolutions, record)
    return ConvolutionsReport(record, sorted(path.name for path in out.iterdir()))


def read_texts(llm: LLM, data: Path, recipe: ConvolutionsRecipe) -> tuple[list[Sequence[int]], dict[str, Any]]:
    """The first `length` tokens of each conversation of a file, and what is said of the data.

    Raises InputError where none is long enough for something to be learnt from it.
    """
    samples = read_samples(llm, data)
    texts = [each.ids[: recipe.length] for each in samples.items]
    first = policy_of(recipe).next_eviction(0, FAR)
    assert first is not None
    long = [ids for ids in texts if len(ids) > first + 1]
    if not long:
        raise InputError(
            f"{data}: of no text the first length={recipe.length} tokens are {first + 2}, from which on something is "
            f"learnt under budget={recipe.budget} and chunk={recipe.chunk}; use longer texts, or smaller ones of these"
        )
    short = samples.about["too_short"] + len(texts) - len(long)
    return long, {**samples.about, "samples": len(long), "too_short": short, "tokens": sum(map(len, long))}


def _learn(
    llm: LLM,
    learner: ConvolutionsLearner,
    out: Path,
    journal: Journal,
    texts: Sequence[Sequence[int]],
    progress: Callable[[ConvolutionsProgress], None],
) -> dict[str, Any]:
    """Take the steps that are left; returns what the run came to, with the seconds of this part of it."""
    recipe, begin = learner.recipe, time.monotonic()
    start_log(out, journal)
    order = islice(sample_order(len(texts), recipe.seed), journal.step * recipe.accumulate, None)
    for step in range(journal.step, recipe.steps):
        read = [texts[index] for index in islice(order, recipe.accumulate)]
        journal.pending.append({"loss": learner.learn(step, llm.decoder, read)})
        journal.step += 1
        journal.tokens += sum(map(len, read))
        if journal.step % recipe.log_every == 0 or journal.step == recipe.steps:
            losses = [each["loss"] for each in journal.pending]
            journal.pending.clear()
            line = {"step": journal.step, "tokens": journal.tokens, "loss": sum(losses) / len(losses)}
            line |= {"learning_rate": recipe.rate(step), "s": round(time.monotonic() - begin, 2)}
            journal.note(out / LOG, line)
        if journal.step % recipe.save_every == 0 and journal.step < recipe.steps:
            save_checkpoint(out, learner, journal)
        last = journal.lines[-1]["loss"] if journal.lines else None
        progress(ConvolutionsProgress(journal.step, recipe.steps, journal.tokens, last))
    first, last = journal.lines[0]["loss"], journal.lines[-1]["loss"]
    seconds = time.monotonic() - begin
    return {"steps": journal.step, "tokens": journal.tokens, "loss_first": first, "loss_last": last, "seconds": seconds}


def _save(out: Path, convolutions: Convolutions, record: dict[str, Any]) -> None:
    """Write the convolutions, the record and a model card; the checkpoints are not needed any more."""
    done = {name: record[name] for name in ("recipe", "data", "result")}
    config = dataclasses.replace(convolutions.config, **done)
    with torch.no_grad():
        Convolutions(config, convolutions.layers).save(out)
    (out / "README.md").write_text(model_card(config, record), encoding="utf-8")
    write_metadata(out, record)
    remove_checkpoints(out)


def model_card(config: ConvolutionsConfig, record: dict[str, Any]) -> str:
    """A Hugging Face model card: what it is, how to use it, how it was made."""
    data, result = record["data"], record["result"]
    rows: dict[str, Any] = {
        "shape": f"{config.layers} layers, {2 * config.head_dim} -> {config.sums}, kernel {config.kernel}",
        "data": f"{data['file']}, {data['samples']:,} texts",
        "tokens read": f"{result['tokens']:,}",
        "loss, first and last": f"{result['loss_first']:.4f}, {result['loss_last']:.4f} nats per token",
        **record["recipe"],
        **{f"{name} version": value for name, value in record["versions"].items()},
    }
    table = "\n".join(f"| {name.replace('_', ' ')} | {value} |" for name, value in rows.items())
    return f"""---
base_model: {config.base}
tags:
- winnow
- lococo
---

# Convolutions for {config.base}

One per layer: with what weights units that a cache of fixed size has no room for go into the sums that it keeps of them
(LoCoCo, arXiv:2406.05317). They fit this base model alone and are refused for others.

```python
from winnow import LLM

llm = LLM("{config.base}", convolutions="DIRECTORY")
print(llm.generate("...", plan="{record["plan"]}")[0].text)
```

| | |
|---|---|
{table}
"""
