"""Training of indexers: what a frozen model attends to, learnt from the hidden states that enter its layers."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from winnow.errors import InputError, ModelError
from winnow.learn.directory import check_fresh, check_resumed
from winnow.learn.indexers_learner import IndexersLearner
from winnow.learn.indexers_recipe import IndexersRecipe
from winnow.learn.journal import Journal, load_checkpoint
from winnow.learn.labels import Sample
from winnow.learn.parts import LIBRARIES, Card, leave
from winnow.learn.run import Figures, Progress, Report, Run, silent
from winnow.learn.samples import read_samples
from winnow.learn.saving import metadata, write_metadata
from winnow.plan import Plan
from winnow.policies.read.indexer import Indexer
from winnow.runtime.indexers import Indexers, IndexersConfig
from winnow.runtime.llm import LLM

SHOWN = ("loss", "mass")


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

    Args:
        llm: the model, which stays as it is, and its tokenizer.
        out: a new or empty directory: gets the indexers, their config, a model card, `winnow.json`, `log.jsonl` and,
            while the run lasts, a checkpoint.
        recipe: None: the defaults.
        validation: more data, which nothing is learnt from: its loss goes into the log and into the result.
        resume: go on from the last checkpoint in `out`, with the same data and recipe.
        progress: called after every step.
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
    if not resume:
        check_fresh(out)
    samples = read_samples(llm, data)
    held_out = None if validation is None else read_samples(llm, validation)
    about = samples.about if held_out is None else {**samples.about, "validation": held_out.about}
    config = IndexersConfig.of(llm.model, shape, recipe.heads, recipe.dim)
    base = {"name": config.base, "fingerprint": config.fingerprint}
    record = metadata(Plan(read=Indexer()), shape.layers, base, recipe, about, libraries=LIBRARIES)
    checkpoint = check_resumed(out, record) if resume else None
    learner = IndexersLearner(Indexers.random(config, recipe.seed, device=llm.device), recipe)
    journal = Journal() if checkpoint is None else load_checkpoint(checkpoint, learner, llm.device)
    out.mkdir(parents=True, exist_ok=True)
    write_metadata(out, record)

    def learn(step: int, read: Sequence[Sample]) -> Figures:
        return learner.learn(step, llm.decoder, *read)

    def judge(sample: Sample) -> Figures:
        return learner.judge(llm.decoder, sample)

    run = Run(
        learner, learn, recipe, out, journal, samples.items, SHOWN, progress, judge=judge,
        held_out=held_out.items if held_out else (), validate_every=recipe.validate_every,
    )  # fmt: skip
    with llm.decoder.driving():
        record["result"] = run.all()
    done = {name: record[name] for name in ("recipe", "data", "result")}
    with torch.no_grad():
        Indexers(dataclasses.replace(config, **done), [*learner.indexers.layers.values()]).save(out)
    card = Card(
        title="Indexers",
        tag="indexer",
        about="One for each layer without a sliding window: which units a decode step reads, the same for all heads\n"
        "(DeepSeek Sparse Attention, arXiv:2512.02556)",
        argument="indexers",
        shape=f"{len(config.layers)} layers, {config.hidden} -> {config.heads} heads of {config.dim}",
        figures={"attention on the best tenth, last": f"{record['result']['mass_last']:.1%}"},
    )
    return leave(out, record, card)
