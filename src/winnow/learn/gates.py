"""Training of DuoAttention's gates: which heads a model's last hidden states need more of a text than its ends of."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from winnow.errors import ModelError
from winnow.learn.directory import check_fresh, check_resumed, remove_checkpoints
from winnow.learn.gates_learner import GatesLearner
from winnow.learn.gates_recipe import GatesRecipe
from winnow.learn.journal import Journal, load_checkpoint
from winnow.learn.labels import Sample
from winnow.learn.parts import LIBRARIES
from winnow.learn.run import Figures, Progress, Report, Run, silent
from winnow.learn.samples import read_samples
from winnow.learn.saving import metadata, write_metadata
from winnow.models.head_gates import HeadGates
from winnow.models.packed import is_packed
from winnow.plan import Plan
from winnow.policies.keep.duo import Duo
from winnow.runtime.adapters import base_name, fingerprint
from winnow.runtime.llm import LLM

SHOWN = ("loss", "distance", "gate")


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

    Args:
        llm: the model, which stays as it is, and its tokenizer.
        out: a new or empty directory: gets `head_gates.json`, which names the model, `winnow.json`, `log.jsonl` and,
            while the run lasts, a checkpoint.
        recipe: None: the defaults.
        validation: more data, which nothing is learnt from: its loss goes into the log and into the result.
        resume: go on from the last checkpoint in `out`, with the same data and recipe.
        progress: called after every step.
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
    if not resume:
        check_fresh(out)
    samples = read_samples(llm, data)
    held_out = None if validation is None else read_samples(llm, validation)
    about = samples.about if held_out is None else {**samples.about, "validation": held_out.about}
    shape, model = llm.decoder.shape, llm.model
    base = {"name": base_name(model), "fingerprint": fingerprint(model)}
    plan = Plan(keep=Duo(sink=recipe.sink, recent=recipe.recent))
    record = metadata(plan, shape.layers, base, recipe, about, libraries=LIBRARIES)
    checkpoint = check_resumed(out, record) if resume else None
    learner = GatesLearner(llm.decoder, recipe)
    journal = Journal() if checkpoint is None else load_checkpoint(checkpoint, learner, llm.device)
    out.mkdir(parents=True, exist_ok=True)
    write_metadata(out, record)

    def learn(step: int, read: Sequence[Sample]) -> Figures:
        return learner.learn(step, *read)

    run = Run(
        learner, learn, recipe, out, journal, samples.items, SHOWN, progress, judge=learner.judge,
        held_out=held_out.items if held_out else (), validate_every=recipe.validate_every,
    )  # fmt: skip
    with llm.decoder.driving():
        record["result"] = run.all()
    gates = learner.gates.detach().tolist()
    HeadGates(base["name"], base["fingerprint"], gates, asdict(recipe), about, record["result"]).save(out)
    write_metadata(out, record)
    remove_checkpoints(out)
    return Report.of(record, out)
