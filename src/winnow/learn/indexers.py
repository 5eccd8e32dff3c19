"""Training of indexers: what a frozen model attends to, learnt from the hidden states that enter its layers."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from winnow.errors import InputError, ModelError
from winnow.learn.cards import Card
from winnow.learn.indexers_learner import IndexersLearner
from winnow.learn.indexers_recipe import IndexersRecipe
from winnow.learn.parts import train_parts
from winnow.learn.run import Parts, Progress, Report, silent
from winnow.learn.samples import read_samples
from winnow.plan import Plan
from winnow.policies.read.indexer import Indexer
from winnow.runtime.indexers import Indexers, IndexersConfig
from winnow.runtime.llm import LLM


def train_indexers(
    llm: LLM,
    data: Path,
    out: Path,
    recipe: IndexersRecipe | None = None,
    *,
    validation: Path | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] = silent,
) -> Report:
    """Train the indexers of `indexer` for a model; see `read_conversations` for the data, and `IndexersLearner` for the
    loss.

    The arguments, but for `recipe` (None: the defaults), and what is left in `out` are those of `train_parts`.

    Raises:
        InputError: the data, the recipe or the output directory cannot be used, or the loss is no number any more.
        ModelError: all layers have sliding windows, and no indexer.
    Source:
        DeepSeek-AI, DeepSeek-V3.2, arXiv:2512.02556, section 2.1.1, the dense warm-up, equation 3; the training of the
        model itself that follows there is left out.
    """
    recipe, shape = recipe or IndexersRecipe(), llm.decoder.shape
    if all(shape.windows):
        raise ModelError(
            "all layers of the model have sliding windows, and the policy indexer leaves these as they are"
        )
    if recipe.dim > shape.head_dim:
        raise InputError(f"dim={recipe.dim} is more than the model's head_dim={shape.head_dim}; use at most that")

    def save(learner: IndexersLearner, config: IndexersConfig, out: Path) -> None:
        with torch.no_grad():
            Indexers(config, [*learner.indexers.layers.values()]).save(out)

    def card(config: IndexersConfig, result: dict[str, Any]) -> Card:
        return Card(
            title="Indexers",
            tag="indexer",
            about="One for each layer without a sliding window: which units a decode step reads, the same for all "
            "heads\n(DeepSeek Sparse Attention, arXiv:2512.02556)",
            argument="indexers",
            shape=f"{len(config.layers)} layers, {config.hidden} -> {config.heads} heads of {config.dim}",
            figures={"attention on the best tenth, last": f"{result['mass_last']:.1%}"},
        )

    parts = Parts(
        plan=Plan(read=Indexer()),
        read=partial(read_samples, llm),
        config=lambda: IndexersConfig.of(llm.model, shape, recipe.heads, recipe.dim),
        learner=lambda config: IndexersLearner(Indexers.random(config, recipe.seed, device=llm.device), recipe),
        learn=lambda learner, step, read: learner.learn(step, llm.decoder, *read),
        shown=("loss", "mass"),
        judge=lambda learner, sample: learner.judge(llm.decoder, sample),
        validate_every=recipe.validate_every,
        save=save,
        card=card,
    )
    return train_parts(parts, llm, data, out, recipe, progress, resume=resume, validation=validation)
