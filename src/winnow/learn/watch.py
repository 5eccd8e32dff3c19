"""What a run tells while it goes: a line of a log now and then, and a call after every step."""

import json
import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from winnow.errors import InputError
from winnow.learn.recipe import Recipe
from winnow.learn.run import Progress
from winnow.learn.saving import Result
from winnow.learn.teacher import forget_base


class Watch(TrainerCallback):
    """Writes `log`, a line of JSON per logging step, calls `progress`, and asks for checkpoints by the clock.

    learnt: what the loss is called: "kl" where it is the divergence from a teacher, as what is held out has both.
    judge: gives the figures of what is held out, before the first step and every `validate_every`; None: nothing is.
    lines: what was logged, earlier parts of a resumed run included: step, tokens, what is learnt (nats per supervised
    token, the mean since the line before), learning_rate, grad_norm; or step and held_out; s: seconds of this part of
    the run.
    Raises InputError in the middle of a run where the loss is no number any more.
    """

    def __init__(
        self,
        log: Path,
        progress: Callable[[Progress], None],
        recipe: Recipe,
        judge: Callable[[], dict[str, float]] | None = None,
        learnt: str = "loss",
    ) -> None:
        self.log, self.progress, self.recipe, self.judge, self.learnt = log, progress, recipe, judge, learnt
        self.lines: list[dict[str, Any]] = []
        self._begin = self._saved = time.monotonic()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        self._begin = self._saved = time.monotonic()
        if state.global_step and self.log.is_file():
            for line in self.log.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError):  # of one that a full disk has torn
                    self.lines.append(json.loads(line))
            self.lines = [line for line in self.lines if line["step"] <= state.global_step]
        if state.is_world_process_zero:
            self.log.write_text("".join(json.dumps(line) + "\n" for line in self.lines), encoding="utf-8")
        if not state.global_step:
            self._judge(state)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        if last := state.global_step == state.max_steps:
            control.should_log = True
        if last or state.global_step % self.recipe.validate_every == 0:
            self._judge(state)
        # Several processes have to save after the same step, and each has a clock of its own.
        if args.world_size == 1 and time.monotonic() - self._saved >= 60 * self.recipe.save_minutes:
            control.should_save = True
        control.should_log |= control.should_save  # or the next line would be the mean of what came after a pause alone
        self.progress(self._progress(state))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        self._saved = time.monotonic()
        forget_base(others.get("model"))  # peft has just noted it

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **others: Any,
    ) -> None:
        if logs is None or "loss" not in logs:
            return
        if not math.isfinite(logs["loss"]):
            raise InputError(f"the loss is {logs['loss']} at step {state.global_step}; use a smaller learning rate")
        line: dict[str, Any] = {"step": state.global_step, "tokens": state.num_input_tokens_seen}
        line[self.learnt] = logs["loss"]
        self._note(state, line | {name: logs[name] for name in ("learning_rate", "grad_norm") if name in logs})

    def result(self, state: TrainerState, seconds: float, peak: int | None) -> Result:
        """What the run came to."""
        losses, held_out = self._found(self.learnt), self._found("held_out")
        last = held_out[-1] if held_out else None
        return Result(state.global_step, state.num_input_tokens_seen, losses[0], losses[-1], seconds, peak, last)

    def _judge(self, state: TrainerState) -> None:
        if self.judge is not None:
            self._note(state, {"step": state.global_step, "held_out": self.judge()})

    def _note(self, state: TrainerState, line: dict[str, Any]) -> None:
        self.lines.append({**line, "s": round(time.monotonic() - self._begin, 2)})
        if state.is_world_process_zero:
            with self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(self.lines[-1]) + "\n")

    def _found(self, name: str) -> list[Any]:
        return [line[name] for line in self.lines if name in line]

    def _progress(self, state: TrainerState) -> Progress:
        last = (self._found(self.learnt) or [None])[-1]
        return Progress(state.global_step, state.max_steps, state.num_input_tokens_seen, {self.learnt: last})
