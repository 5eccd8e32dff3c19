"""Training of LoCoCo's convolutions: a frozen model predicts texts from a cache of fixed size, whose sums learn."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from winnow.errors import InputError, ModelError
from winnow.learn.cards import Card
from winnow.learn.convolutions_learner import ConvolutionsLearner, policy_of
from winnow.learn.convolutions_recipe import ConvolutionsRecipe
from winnow.learn.labels import Sample
from winnow.learn.parts import train_parts
from winnow.learn.run import Figures, Parts, Progress, Report, silent
from winnow.learn.samples import Samples, read_samples
from winnow.models.packed import is_packed
from winnow.plan import Plan
from winnow.runtime.convolutions import Convolutions, ConvolutionsConfig
from winnow.runtime.llm import LLM

FAR = 2**40  # tokens of a text that has no end


def train_convolutions(
    llm: LLM,
    data: Path,
    out: Path,
    recipe: ConvolutionsRecipe | None = None,
    *,
    resume: bool = False,
    progress: Callable[[Progress], None] = silent,
) -> Report:
    """Train the convolutions of `lococo` for a model; see `read_conversations` for the data, of which every token that
    follows a compressed cache is predicted.

    The arguments, but for `recipe` (None: the defaults), and what is left in `out` are those of `train_parts`.

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

    def learn(learner: ConvolutionsLearner, step: int, read: Sequence[Sample]) -> Figures:
        return {"loss": learner.learn(step, llm.decoder, [each.ids for each in read])}

    def save(learner: ConvolutionsLearner, config: ConvolutionsConfig, out: Path) -> None:
        with torch.no_grad():
            Convolutions(config, learner.convolutions.layers).save(out)

    def card(config: ConvolutionsConfig, result: dict[str, Any]) -> Card:
        return Card(
            title="Convolutions",
            tag="lococo",
            about="One per layer: with what weights units that a cache of fixed size has no room for go into the sums\n"
            "that it keeps of them (LoCoCo, arXiv:2406.05317)",
            argument="convolutions",
            shape=f"{config.layers} layers, {2 * config.head_dim} -> {config.sums}, kernel {config.kernel}",
            figures={},
            unit=" nats per token",
            items="texts",
        )

    parts = Parts(
        plan=Plan(keep=policy),
        read=partial(read_texts, llm, recipe=recipe),
        config=lambda: ConvolutionsConfig.of(llm.model, llm.decoder.shape, recipe.sums, recipe.kernel),
        learner=lambda config: ConvolutionsLearner(Convolutions.random(config, recipe.seed, device=llm.device), recipe),
        learn=learn,
        batch=recipe.accumulate,
        shown=("loss",),
        save=save,
        card=card,
    )
    return train_parts(parts, llm, data, out, recipe, progress, resume=resume)


def read_texts(llm: LLM, data: Path, recipe: ConvolutionsRecipe) -> Samples:
    """The first `length` tokens of each conversation of a file, and what is said of the data.

    Raises InputError where none is long enough for something to be learnt from it.
    """
    samples = read_samples(llm, data)
    texts = [Sample(each.ids[: recipe.length], min(each.prompt, recipe.length)) for each in samples.items]
    first = policy_of(recipe).next_eviction(0, FAR)
    assert first is not None
    long = [each for each in texts if len(each.ids) > first + 1]
    if not long:
        raise InputError(
            f"{data}: of no text the first length={recipe.length} tokens are {first + 2}, from which on something is "
            f"learnt under budget={recipe.budget} and chunk={recipe.chunk}; use longer texts, or smaller ones of these"
        )
    about = {
        "samples": len(long),
        "too_short": samples.about["too_short"] + len(texts) - len(long),
        "tokens": sum(len(each.ids) for each in long),
    }
    return Samples(long, {**samples.about, **about})
