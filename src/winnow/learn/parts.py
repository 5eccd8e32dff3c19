"""The frame of a training of parts beside a model: what is checked, what is gone on from, and what is left behind."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from winnow.learn.directory import check_fresh, check_resumed, remove_checkpoints
from winnow.learn.journal import Journal, load_checkpoint
from winnow.learn.run import Learning, Of, Parts, Progress, Recipe, Report, Run
from winnow.learn.samples import Samples
from winnow.learn.saving import metadata, write_metadata
from winnow.models.packed import is_packed
from winnow.runtime.adapters import adapter_name
from winnow.runtime.llm import LLM

LIBRARIES = ("torch", "transformers")


def train_parts(
    parts: Parts[Of, Learning],
    llm: LLM,
    data: Path,
    out: Path,
    recipe: Recipe,
    progress: Callable[[Progress], None],
    *,
    resume: bool,
    validation: Path | None = None,
) -> Report:
    """Train parts for a model; see `read_conversations` for the data.

    Args:
        llm: the model, which stays as it is, and its tokenizer.
        out: a new or empty directory: gets the parts, a config, a model card, `winnow.json`, `log.jsonl` and, while the
            run lasts, a checkpoint.
        recipe: a dataclass, see `winnow.learn.run.Recipe`; None of a `train_...`: its defaults.
        progress: called after every step.
        resume: go on from the last checkpoint in `out`, with the same data and recipe.
        validation: more data, which nothing is learnt from: its figures go into the log and into the result.
    Raises:
        InputError: the data, the recipe or the output directory cannot be used, or the loss is no number any more.
        ModelError: the checkpoint is damaged.
    """
    if not resume:
        check_fresh(out)
    samples = parts.read(data)
    held_out = Samples([], {}) if validation is None else parts.read(validation)
    about = {**samples.about, "validation": held_out.about} if held_out.about else samples.about
    config = parts.config()
    base: dict[str, Any] = {"name": config.base, "fingerprint": config.fingerprint, "dtype": str(llm.model.dtype)}
    base |= {"prefill_chunk": llm.prefill_chunk, "packed": is_packed(llm.model)}
    if (adapter := adapter_name(llm.model)) is not None:
        base["adapter"] = adapter
    record = metadata(parts.plan, llm.decoder.shape.layers, base, recipe, about, libraries=LIBRARIES)
    checkpoint = check_resumed(out, record) if resume else None
    learner = parts.learner(config)
    journal = Journal() if checkpoint is None else load_checkpoint(checkpoint, learner, llm.device)
    out.mkdir(parents=True, exist_ok=True)
    write_metadata(out, record)
    run = Run(parts, learner, llm.decoder, recipe, out, journal, samples.items, held_out.items, progress)
    record["result"] = run.all()
    done: Any = {name: record[name] for name in ("recipe", "data", "result")}
    parts.save(learner, dataclasses.replace(config, **done), out)  # type: ignore[type-var]
    if parts.card is not None:
        (out / "README.md").write_text(parts.card(config, record["result"]).text(record), encoding="utf-8")
    write_metadata(out, record)
    remove_checkpoints(out)  # which are not needed any more
    return Report(record, sorted(path.name for path in out.iterdir()))
