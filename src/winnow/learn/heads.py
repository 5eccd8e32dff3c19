"""Training of Locret's retaining heads: the model reads a text, its heads learn what the end of it asked for.

The model itself stays as it is. Heads see nothing but projections, which they do not influence, so no gradient goes
through the model: a text is read once, without one, and the heads of a layer learn from what that layer projected.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from winnow.learn.directory import check_fresh, check_resumed
from winnow.learn.heads_files import record_of, save_heads
from winnow.learn.heads_learner import HeadsLearner
from winnow.learn.heads_recipe import HeadsRecipe
from winnow.learn.journal import Journal, load_checkpoint
from winnow.learn.labels import Labelled, Sample, label
from winnow.learn.repeats import LEAST as REPEATED
from winnow.learn.repeats import check_repeated, label_repeated
from winnow.learn.run import Figures, Progress, Report, Run, silent
from winnow.learn.samples import LEAST, read_samples
from winnow.learn.saving import write_metadata
from winnow.runtime.heads import HeadsConfig, RetainingHeads, Target
from winnow.runtime.llm import LLM

SHOWN = ("loss", "overlap")


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

    Args:
        llm: the model, which stays as it is, and its tokenizer; `prefill_chunk` tokens are computed at a time.
        out: a new or empty directory: gets the heads, in the model's dtype, their config, a model card, `winnow.json`,
            `log.jsonl` and, while the run lasts, a checkpoint.
        recipe: None: the defaults.
        target: what they learn to say of a unit.
        validation: more data, which nothing is learnt from: its loss goes into the log and into the result.
        resume: go on from the last checkpoint in `out`, with the same data and recipe.
        progress: called after every step.
    Raises:
        InputError: the data, the recipe or the output directory cannot be used, or the loss is no number any more; or
            a layer has a sliding window, and a text is to be repeated.
    Source:
        Huang et al., Locret, arXiv:2410.01805, section 3.2; the loss, the clipping by value and the schedule are those
        of the authors' code.
    """
    recipe = recipe or HeadsRecipe()
    least = LEAST if target == "logit" else REPEATED
    if target == "repeat":
        check_repeated(llm, recipe.length)
    if not resume:
        check_fresh(out)
    samples = read_samples(llm, data, least)
    held_out = None if validation is None else read_samples(llm, validation, least)
    config = HeadsConfig.of(llm.model, llm.decoder.shape, recipe.width, target)
    about = samples.about if held_out is None else {**samples.about, "validation": held_out.about}
    record = record_of(config, recipe, about)
    checkpoint = check_resumed(out, record) if resume else None
    learner = HeadsLearner(RetainingHeads.random(config, recipe.seed, device=llm.device), recipe)
    journal = Journal() if checkpoint is None else load_checkpoint(checkpoint, learner, llm.device)
    out.mkdir(parents=True, exist_ok=True)
    write_metadata(out, record)

    def labelled(sample: Sample) -> Labelled:
        if target == "repeat":
            return label_repeated(llm, sample.ids, length=recipe.length)
        return label(llm.decoder, sample, length=recipe.length, chunk=llm.prefill_chunk)

    def learn(step: int, read: Sequence[Sample]) -> Figures:
        return vars(learner.learn(step, *map(labelled, read)))

    def judge(sample: Sample) -> Figures:
        return vars(learner.judge(labelled(sample)))

    run = Run(
        learner, learn, recipe, out, journal, samples.items, SHOWN, progress, judge=judge,
        held_out=held_out.items if held_out else (), validate_every=recipe.validate_every,
    )  # fmt: skip
    record["result"] = run.all()
    return save_heads(out, learner.heads, record, llm.dtype)
