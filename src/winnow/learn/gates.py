"""Training of DuoAttention's gates: which heads a model's last hidden states need more of a text than its ends of."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from winnow.errors import ModelError
from winnow.learn.gates_learner import GatesLearner
from winnow.learn.gates_recipe import GatesRecipe
from winnow.learn.parts import train_parts
from winnow.learn.run import Parts, Progress, Report, silent
from winnow.learn.samples import read_samples
from winnow.models.head_gates import HeadGates
from winnow.models.packed import is_packed
from winnow.plan import Plan
from winnow.policies.keep.duo import Duo
from winnow.runtime.adapters import base_name, fingerprint
from winnow.runtime.llm import LLM


def train_gates(
    llm: LLM,
    data: Path,
    out: Path,
    recipe: GatesRecipe | None = None,
    *,
    validation: Path | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] = silent,
) -> Report:
    """Train a gate for each KV head of a model; see `read_conversations` for the data, and `GatesLearner` for the loss.

    The prompt of a sample is everything before its first answer; what the last hidden states of the rest lose is learnt
    from, so texts should ask for what stands far behind.

    The arguments, but for `recipe` (None: the defaults), are those of `train_parts`. `out` gets `head_gates.json`,
    which names the model, and no other config and no model card.

    Raises:
        InputError: the data, the recipe or the output directory cannot be used, or the loss is no number any more.
        ModelError: the weights are packed, or the checkpoint is damaged.
    Source:
        Xiao et al., DuoAttention, arXiv:2410.10819, section 2.2, and the authors' code; their texts are long ones with
        ten pass keys, all of which the answer repeats.
    """
    recipe = recipe or GatesRecipe()
    if is_packed(llm.model):
        raise ModelError("packed weights have no gradients; load the model with weights='dense' to train its gates")
    model = llm.model
    parts = Parts(
        plan=Plan(keep=Duo(sink=recipe.sink, recent=recipe.recent)),
        read=partial(read_samples, llm),
        config=lambda: HeadGates(base_name(model), fingerprint(model), layers=[]),
        learner=lambda config: GatesLearner(llm.decoder, recipe),
        learn=lambda learner, step, read: learner.learn(step, *read),
        shown=("loss", "distance", "gate"),
        judge=GatesLearner.judge,
        validate_every=recipe.validate_every,
        save=lambda learner, config, out: replace(config, layers=learner.gates.detach().tolist()).save(out),
    )
    return train_parts(parts, llm, data, out, recipe, progress, resume=resume, validation=validation)
