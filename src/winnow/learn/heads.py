"""Training of Locret's retaining heads: the model reads a text, its heads learn what the end of it asked for.

The model itself stays as it is. Heads see nothing but projections, which they do not influence, so no gradient goes
through the model: a text is read once, without one, and the heads of a layer learn from what that layer projected.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from winnow.learn.cards import Card
from winnow.learn.heads_learner import HeadsLearner
from winnow.learn.heads_recipe import HeadsRecipe
from winnow.learn.labels import Labelled, Sample, label
from winnow.learn.parts import train_parts
from winnow.learn.repeats import LEAST as REPEATED
from winnow.learn.repeats import check_repeated, label_repeated
from winnow.learn.run import Parts, Progress, Report, silent
from winnow.learn.samples import LEAST, read_samples
from winnow.plan import Plan
from winnow.policies.keep.base import KeepPolicy
from winnow.policies.keep.kvzap import KVzap
from winnow.policies.keep.locret import Locret
from winnow.runtime.heads import HeadsConfig, RetainingHeads, Target
from winnow.runtime.llm import LLM


class Use(NamedTuple):
    """What heads are for. keep: the policy that they were made for; plan: one of it; say: what they say of a token."""

    keep: KeepPolicy
    plan: str
    say: str


USES: dict[Target, Use] = {
    "logit": Use(
        Locret(),
        "locret(budget=1024)",
        "how much later ones will attend to it, so that a cache of fixed size\n"
        "can keep what matters (Locret, arXiv:2410.01805)",
    ),
    "repeat": Use(
        KVzap(),
        "kvzap(threshold=-6)",
        "how much the model would need it to repeat the text, so that a cache\n"
        "can keep what matters (KVzap, arXiv:2601.07891)",
    ),
}


def train_heads(
    llm: LLM,
    data: Path,
    out: Path,
    recipe: HeadsRecipe | None = None,
    *,
    target: Target = "logit",
    validation: Path | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] = silent,
) -> Report:
    """Train retaining heads for a model; see `read_conversations` for the data, and `label` and `label_repeated` for
    what is learnt.

    The prompt of a sample is everything before its first answer, that answer's header included; the rest of the
    conversation, later questions too, says which of the prompt's tokens matter. Of a text that is repeated each
    token is learnt.

    The arguments, but for the following, and what is left in `out` are those of `train_parts`.

    Args:
        llm: `prefill_chunk` tokens are computed at a time; the heads are saved in its dtype.
        recipe: None: the defaults.
        target: what they learn to say of a unit.
    Raises:
        InputError: the data, the recipe or the output directory cannot be used, or the loss is no number any more; or
            a layer has a sliding window, and a text is to be repeated.
    Source:
        Huang et al., Locret, arXiv:2410.01805, section 3.2; the loss, the clipping by value and the schedule are those
        of the authors' code.
    """
    recipe = recipe or HeadsRecipe()
    if target == "repeat":
        check_repeated(llm, recipe.length)
    use = USES[target]

    def labelled(sample: Sample) -> Labelled:
        if target == "repeat":
            return label_repeated(llm, sample.ids, length=recipe.length)
        return label(llm.decoder, sample, length=recipe.length, chunk=llm.prefill_chunk)

    def save(learner: HeadsLearner, config: HeadsConfig, out: Path) -> None:
        heads = RetainingHeads(config, learner.heads.first, learner.heads.second)
        heads.to(torch.device("cpu"), llm.dtype).save(out)

    def card(config: HeadsConfig, result: dict[str, Any]) -> Card:
        sizes = f"{config.inputs} -> {config.width} -> {config.kv_heads}"
        return Card(
            title="Retaining heads",
            tag=use.keep.name,
            about=f"Small networks, one per layer, that say of every token {use.say}",
            argument="heads",
            shape=f"{config.layers} layers, {sizes}, {config.activation}",
            figures={"overlap of the best tenth, last": f"{result['overlap_last']:.1%}"},
            plan=use.plan,
        )

    parts = Parts(
        plan=Plan(keep=use.keep),
        read=partial(read_samples, llm, least=LEAST if target == "logit" else REPEATED),
        config=lambda: HeadsConfig.of(llm.model, llm.decoder.shape, recipe.width, target),
        learner=lambda config: HeadsLearner(RetainingHeads.random(config, recipe.seed, device=llm.device), recipe),
        learn=lambda learner, step, read: vars(learner.learn(step, *map(labelled, read))),
        shown=("loss", "overlap"),
        judge=lambda learner, sample: vars(learner.judge(labelled(sample))),
        validate_every=recipe.validate_every,
        save=save,
        card=card,
    )
    return train_parts(parts, llm, data, out, recipe, progress, resume=resume, validation=validation)
