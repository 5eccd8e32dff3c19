"""The loop of a training whose model stays as it is: a step, a log, checkpoints, and what it came to."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from winnow.learn.cards import Card
from winnow.learn.journal import LOG, Journal, save_checkpoint, start_log
from winnow.learn.labels import Sample
from winnow.learn.learner import Learner
from winnow.learn.peak import peak_bytes
from winnow.learn.samples import Samples, sample_order
from winnow.plan import Plan
from winnow.runtime.decoder import Decoder
from winnow.runtime.trained import Config

Figures = dict[str, float]  # by name, "loss" among them
Of = TypeVar("Of", bound=Config)
Learning = TypeVar("Learning", bound=Learner)


@dataclass(frozen=True)
class Progress:
    """Where a run is. step of steps; tokens: read so far; figures: of the last log line, by name, None before it."""

    step: int
    steps: int
    tokens: int
    figures: dict[str, float | None]


@dataclass(frozen=True)
class Report:
    """What a run came to; record: what is in `winnow.json`; files: in the output directory."""

    record: dict[str, Any]
    files: list[str]


def silent(progress: Progress) -> None:
    """Nobody is told."""


class Recipe(Protocol):
    """What the loop is told by a recipe, a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def steps(self) -> int: ...

    @property
    def seed(self) -> int: ...

    @property
    def save_every(self) -> int: ...

    @property
    def save_minutes(self) -> float: ...

    @property
    def log_every(self) -> int: ...

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""


@dataclass(frozen=True, kw_only=True)
class Parts(Generic[Of, Learning]):
    """What one kind of parts has of its own, for a model and with a recipe.

    plan: what they are for. read: the samples of a file. config: of the model as it is; it has the fields `recipe`,
    `data` and `result` besides, for how they were made. learner: of parts that have learnt nothing. learn: takes a
    step, counted from 0, by `batch` samples. shown: the figures that the result has, of the first and the last line of
    the log. judge: figures of a sample of which nothing is learnt, every `validate_every` steps; None: there are none.
    save: writes the trained parts. card: of them and what the run came to; None: they have none.
    """

    plan: Plan
    read: Callable[[Path], Samples]
    config: Callable[[], Of]
    learner: Callable[[Of], Learning]
    learn: Callable[[Learning, int, Sequence[Sample]], Figures]
    shown: Sequence[str]
    save: Callable[[Learning, Of, Path], None]
    card: Callable[[Of, dict[str, Any]], Card] | None = None
    judge: Callable[[Learning, Sample], Figures] | None = None
    validate_every: int = 1
    batch: int = 1


@dataclass
class Run(Generic[Learning]):
    """held_out: samples that nothing is learnt from. progress: called after every step."""

    parts: Parts[Any, Learning]
    learner: Learning
    decoder: Decoder
    recipe: Recipe
    out: Path
    journal: Journal
    samples: Sequence[Sample]
    held_out: Sequence[Sample]
    progress: Callable[[Progress], None]
    begin: float = field(default_factory=time.monotonic)
    saved: float = field(default_factory=time.monotonic)

    def all(self) -> dict[str, Any]:
        """Take the steps that are left; returns what the run came to; seconds: of this part of a resumed run."""
        journal, recipe, batch = self.journal, self.recipe, self.parts.batch
        start_log(self.out, journal)
        order = islice(sample_order(len(self.samples), recipe.seed), journal.step * batch, None)
        while journal.step < recipe.steps:
            read = [self.samples[index] for index in islice(order, batch)]
            with self.decoder.driving():
                journal.pending.append(self.parts.learn(self.learner, journal.step, read))
            journal.step += 1
            journal.tokens += sum(len(each.ids) for each in read)
            if self._now(recipe.log_every):
                self._log_step()
            self._judge()
            self._save()
            last = (self._lines("loss") or [{}])[-1]
            figures = {name: last.get(name) for name in self.parts.shown}
            self.progress(Progress(journal.step, recipe.steps, journal.tokens, figures))
        return self._result()

    def _save(self) -> None:
        """Write a checkpoint where it is time: after so many steps, or minutes; after the last one there is no need."""
        step, late = self.journal.step, time.monotonic() - self.saved >= 60 * self.recipe.save_minutes
        if (late or step % self.recipe.save_every == 0) and step < self.recipe.steps:
            save_checkpoint(self.out, self.learner, self.journal)
            self.saved = time.monotonic()

    def _judge(self) -> None:
        """Log the figures of what is held out, where it is time."""
        judge = self.parts.judge
        if judge is not None and self.held_out and self._now(self.parts.validate_every):
            with self.decoder.driving():
                figures = mean([judge(self.learner, each) for each in self.held_out])
            self._log({"step": self.journal.step, "held_out": figures})

    def _result(self) -> dict[str, Any]:
        steps, held_out = self._lines("loss"), self._lines("held_out")
        ends = {"first": steps[0], "last": steps[-1]}
        return {
            "steps": self.journal.step,
            "tokens": self.journal.tokens,
            **{f"{name}_{when}": line[name] for name in self.parts.shown for when, line in ends.items()},
            "held_out": held_out[-1]["held_out"] if held_out else None,
            "seconds": time.monotonic() - self.begin,
            "peak_bytes": peak_bytes(self.decoder.device),
        }

    def _now(self, every: int) -> bool:
        return self.journal.step % every == 0 or self.journal.step == self.recipe.steps

    def _log_step(self) -> None:
        """The mean over the steps since the last line; the learning rate is that of the last step."""
        step, pending = self.journal.step, self.journal.pending
        figures = mean(pending)
        pending.clear()
        self._log({"step": step, **figures, "learning_rate": self.recipe.rate(step - 1)})

    def _log(self, line: dict[str, Any]) -> None:
        self.journal.note(self.out / LOG, {**line, "s": round(time.monotonic() - self.begin, 2)})

    def _lines(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.journal.lines if name in line]


def mean(several: Sequence[Figures]) -> Figures:
    """Of one or more samples, figure by figure."""
    return {name: sum(each[name] for each in several) / len(several) for name in several[0]}
