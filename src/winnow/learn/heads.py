"""Training of Locret's retaining heads: the model reads a text, its heads learn what the end of it asked for.

The model itself stays as it is. Heads see nothing but projections, which they do not influence, so no gradient goes
through the model: a text is read once, without one, and the heads of a layer learn from what that layer projected.
"""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from winnow.learn.directory import check_fresh, check_resumed
from winnow.learn.heads_files import (
    LOG,
    Journal,
    load_checkpoint,
    record_of,
    save_checkpoint,
    save_heads,
    start_log,
)
from winnow.learn.heads_learner import Figures, HeadsLearner
from winnow.learn.heads_recipe import HeadsRecipe
from winnow.learn.labels import Labelled, Sample, label
from winnow.learn.samples import read_samples, sample_order
from winnow.learn.saving import write_metadata
from winnow.runtime.heads import HeadsConfig, RetainingHeads
from winnow.runtime.llm import LLM


@dataclass(frozen=True)
class HeadsProgress:
    """Where a run is. step of steps; tokens: read so far; loss, overlap: of the last log line, None before it."""

    step: int
    steps: int
    tokens: int
    loss: float | None
    overlap: float | None


@dataclass(frozen=True)
class HeadsReport:
    """What a run came to; record: what is in `winnow.json`; files: in the output directory."""

    record: dict[str, Any]
    files: list[str]


def train_heads(
    llm: LLM,
    data: Path,
    out: Path,
    recipe: HeadsRecipe | None = None,
    *,
    validation: Path | None = None,
    resume: bool = False,
    progress: Callable[[HeadsProgress], None] = lambda progress: None,
) -> HeadsReport:
    """Train retaining heads for a model; see `read_conversations` for the data, and `label` for what is learnt.

    The prompt of a sample is everything before its first answer, that answer's header included; the rest of the
    conversation, later questions too, says which of the prompt's tokens matter.

    Args:
        llm: the model, which stays as it is, and its tokenizer; `prefill_chunk` tokens are computed at a time.
        out: a new or empty directory: gets the heads, in the model's dtype, their config, a model card, `winnow.json`,
            `log.jsonl` and, while the run lasts, a checkpoint.
        recipe: None: the defaults.
        validation: more data, which nothing is learnt from: its loss goes into the log and into the result.
        resume: go on from the last checkpoint in `out`, with the same data and recipe.
        progress: called after every step.
    Raises:
        InputError: the data, the recipe or the output directory cannot be used, or the loss is no number any more.
    Source:
        Huang et al., Locret, arXiv:2410.01805, section 3.2; the loss, the clipping by value and the schedule are those
        of the authors' code.
    """
    recipe = recipe or HeadsRecipe()
    if not resume:
        check_fresh(out)
    samples = read_samples(llm, data)
    held_out = None if validation is None else read_samples(llm, validation)
    config = HeadsConfig.of(llm.model, llm.decoder.shape, recipe.width)
    about = samples.about if held_out is None else {**samples.about, "validation": held_out.about}
    record = record_of(config, recipe, about)
    checkpoint = check_resumed(out, record) if resume else None
    learner = HeadsLearner(RetainingHeads.random(config, recipe.seed, device=llm.device), recipe)
    journal = Journal() if checkpoint is None else load_checkpoint(checkpoint, learner)
    out.mkdir(parents=True, exist_ok=True)
    write_metadata(out, record)
    run = _Run(llm, learner, recipe, out, journal, samples.items, held_out.items if held_out else [])
    record["result"] = run.result(run.all(progress))
    save_heads(out, learner.heads, record, llm.dtype)
    return HeadsReport(record, sorted(path.name for path in out.iterdir()))


@dataclass
class _Run:
    """The loop, and what it tells."""

    llm: LLM
    learner: HeadsLearner
    recipe: HeadsRecipe
    out: Path
    journal: Journal
    samples: list[Sample]
    held_out: list[Sample]
    begin: float = dataclasses.field(default_factory=time.monotonic)

    def all(self, progress: Callable[[HeadsProgress], None]) -> float:
        """Take the steps that are left; returns the seconds that took."""
        journal, recipe = self.journal, self.recipe
        start_log(self.out, journal)
        for index in islice(sample_order(len(self.samples), recipe.seed), journal.step, recipe.steps):
            journal.pending.append(vars(self.learner.learn(journal.step, self._label(self.samples[index]))))
            journal.step += 1
            journal.tokens += len(self.samples[index].ids)
            if self._now(recipe.log_every):
                self._log_step()
            if self.held_out and self._now(recipe.validate_every):
                self._log({"step": journal.step, "held_out": vars(self._judge())})
            if journal.step % recipe.save_every == 0 and journal.step < recipe.steps:
                save_checkpoint(self.out, self.learner, journal)
            progress(self._progress())
        return time.monotonic() - self.begin

    def result(self, seconds: float) -> dict[str, Any]:
        """What the run came to; seconds: of the last part of a resumed run."""
        steps, held_out = self._lines("loss"), self._lines("held_out")
        return {
            "steps": self.journal.step,
            "tokens": self.journal.tokens,
            "loss_first": steps[0]["loss"],
            "loss_last": steps[-1]["loss"],
            "overlap_first": steps[0]["overlap"],
            "overlap_last": steps[-1]["overlap"],
            "held_out": held_out[-1]["held_out"] if held_out else None,
            "seconds": seconds,
        }

    def _label(self, sample: Sample) -> Labelled:
        return label(self.llm.decoder, sample, length=self.recipe.length, chunk=self.llm.prefill_chunk)

    def _judge(self) -> Figures:
        return Figures.mean([self.learner.judge(self._label(sample)) for sample in self.held_out])

    def _now(self, every: int) -> bool:
        return self.journal.step % every == 0 or self.journal.step == self.recipe.steps

    def _log_step(self) -> None:
        """The mean over the steps since the last line; the learning rate is that of the last step."""
        step, pending = self.journal.step, self.journal.pending
        figures = Figures.mean([Figures(**each) for each in pending])
        pending.clear()
        self._log({"step": step, **vars(figures), "learning_rate": self.recipe.rate(step - 1)})

    def _log(self, line: dict[str, Any]) -> None:
        self.journal.note(self.out / LOG, {**line, "s": round(time.monotonic() - self.begin, 2)})

    def _lines(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.journal.lines if name in line]

    def _progress(self) -> HeadsProgress:
        last = (self._lines("loss") or [{}])[-1]
        journal = self.journal
        return HeadsProgress(journal.step, self.recipe.steps, journal.tokens, last.get("loss"), last.get("overlap"))
