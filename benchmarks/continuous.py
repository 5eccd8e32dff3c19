"""transformers' continuous batching of the same prompts, turn after turn: what it takes for a step of all of them."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

PAGE = 32  # tokens of a page: what every prompt computes again in a turn, so that all begin in one step
MOST_ROWS = 512  # tokens of a step
SPARE = 2  # tokens of each beyond those that are timed, the first among them


class ContinuousError(Exception):
    """It has ended without the tokens that were asked for; the message is its own."""


class Continuous:
    """Prompts that transformers continues together, `steps` tokens of each in a turn.

    It keeps the pages of prompts that it has seen, so that every turn but the first has little of them to compute
    again.
    """

    def __init__(self, model: PreTrainedModel, prompts: Sequence[list[int]], steps: int) -> None:
        new = steps + SPARE
        self._model, self._prompts = model, list(prompts)
        most = max(map(len, prompts)) + new
        self._settings = {
            "generation_config": GenerationConfig(max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0),
            "continuous_batching_config": ContinuousBatchingConfig(
                page_size=PAGE,
                num_blocks=len(prompts) * (-(-most // PAGE) + 1),
                max_batch_tokens=MOST_ROWS,
                scheduler_type="prefill_first",
                use_cuda_graph=False,
            ),
        }

    def begin(self) -> None:
        """Compute the prompts, and take a turn that is not counted. Raises ContinuousError."""
        self._run()
        self.turn()

    def turn(self) -> list[float]:
        """Seconds of each step in which all of them were given a token. Raises ContinuousError."""
        if not (steps := list(steps_of_all(self._run()))):
            raise ContinuousError("there was no step in which all decode")
        return steps

    def close(self) -> None:
        """Give its pages back."""
        self._model.destroy_cached_continuous_batching_manager()

    def _run(self) -> list[list[float]]:
        """When each prompt's tokens came, in seconds."""
        with _quiet():
            found = self._model.generate_batch(
                self._prompts, **self._settings, record_timestamps=True, warmup=False, persistent_manager=True
            )
        if failed := [each.error for each in found.values() if each.error]:
            raise ContinuousError(str(failed[0]))
        if len(found) < len(self._prompts):
            raise ContinuousError(f"{len(found)} of {len(self._prompts)} requests came back")
        return [each.timestamps for each in found.values()]


def steps_of_all(times: Sequence[Sequence[float]]) -> Iterator[float]:
    """Seconds between tokens of the sequence that began last, as long as all the others have tokens too.

    times: of each sequence's tokens, in seconds of one clock, ascending.
    """
    last = max(times, key=lambda each: each[0])
    end = min(each[-1] for each in times)
    slack = 0.5 * min(later - earlier for earlier, later in pairwise(last))
    for earlier, later in pairwise(last):
        if later <= end + slack:  # tokens of one step do not come at quite the same time
            yield later - earlier


@contextmanager
def _quiet() -> Iterator[None]:
    """Within, it says no more than that something failed."""
    log = logging.getLogger("ContinuousBatchingLogger")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
