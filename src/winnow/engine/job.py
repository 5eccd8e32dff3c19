"""A sequence and what it is to be fed, and the steps that feed many of them at once."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.runtime.decoder import Decoder
from winnow.runtime.forward import finish, logits_of, walk
from winnow.runtime.sequence import Sequence as State


@dataclass(eq=False)
class Job:
    """A sequence that is to be fed the tokens of its prompt and then one token at a time.

    prompt: what is left of it; token: what a decode step feeds next, None where there is nothing to feed. progress:
    told of prompt tokens that have been processed. error: what kept it from going on. mark: a number of tokens after
    which a step ends. Subclasses say what becomes of the logits.
    """

    state: State
    prompt: list[int]
    token: int | None = None
    progress: Callable[[int], None] = field(default=lambda tokens: None, repr=False)
    error: BaseException | None = None
    mark: int | None = None
    _walk: "_Walk | None" = None

    @property
    def pending(self) -> bool:
        """Whether there is anything to feed."""
        return bool(self.prompt) or self.token is not None

    def take(self, logits: Tensor) -> None:
        """What follows the prompt, or the token of a decode step. logits: [vocab] float32."""
        raise TypeError(f"{type(self).__name__} does not say what becomes of logits")

    def passed(self, hidden: Tensor) -> None:
        """Rows of the prompt have left the last layer, [rows, hidden]; fewer than went in where some stopped."""

    def fail(self, error: BaseException) -> None:
        """A step that was feeding it has raised; its state is of no more use."""
        self.prompt, self.token, self._walk, self.error = [], None, None, error

    def _piece(self, rows: int) -> "Piece":
        """The next tokens of the prompt, at most `rows` where what they read is not chosen for more of them at once; or
        of what is read of it once more."""
        if again := self.state.repeating:
            return Piece(self, list(again[:rows]))
        left, done = len(self.prompt), self.state.position
        if self.mark is not None and self.mark > done:
            left = min(left, self.mark - done)
        count = self.state.piece(rows, left)
        return Piece(self, self.prompt[:count], count)

    def _gathers(self, tokens: int) -> int:
        """The most rows that go through a layer together if so many tokens of the prompt are fed."""
        ends = self.state.position + tokens == self.state.prompt
        return self.state.prompt if ends and self.state.gates.gathers < self.state.shape.layers else tokens


class Piece(NamedTuple):
    """What a job is fed in a step. of_prompt: how many of the tokens are the next of its prompt."""

    job: Job
    tokens: list[int]
    of_prompt: int = 0


Last = list[tuple[Job, Tensor]]  # jobs whose logits are due, each with its last row, [1, hidden]


@dataclass
class _Walk:
    """A pass of one sequence through the layers that takes several steps: all its rows go on at once somewhere.

    of_prompt: as in `Piece`."""

    of_prompt: int
    steps: Generator[int, None, list[Tensor]]


def step(decoder: Decoder, jobs: Sequence[Job], rows: int) -> int:
    """One step: every job that has a token is fed it, and prompts, in their order, up to `rows` tokens in all.

    At least one token of a prompt goes on, whatever `rows` is. Rows that have waited for the end of their prompt and
    are more than there is room for go on over several steps. What is raised ends the jobs whose states it may have
    spoilt, and no others: see `Job.fail`. Returns how many tokens of prompts it has gone on by.
    """
    if any(job.prompt for job in jobs):
        return _step(decoder, jobs, rows)
    with decoder.decoding(sum(job.token is not None for job in jobs)):
        return _step(decoder, jobs, rows)


def _step(decoder: Decoder, jobs: Sequence[Job], rows: int) -> int:
    for job in jobs:
        if job.token is not None:
            with _ending(job):
                job.state.make_room()
    together = [Piece(job, [job.token]) for job in jobs if job.token is not None]
    room = left = max(1, rows - len(together))
    decodes, ended = len(together), []
    for job in jobs:
        if left <= 0 or not job.prompt:
            continue
        if job._walk is None:
            # Where rounding must not depend on company, neither may the chunks: larger ones go on over several steps.
            piece = job._piece(job.state.chunk if decoder.deterministic else left)
            tokens = piece.tokens
            if job._gathers(len(tokens)) <= left:
                together.append(piece)
                left -= len(tokens)
                continue
            job._walk = _Walk(piece.of_prompt, walk(decoder, [(job.state, tokens)], [False]))
        done, last = _go_on(decoder, job, left)
        left -= done
        ended += last
    for each in _passes(decoder, together, decodes):
        with _ending(*(job for job, _ in ended)):
            ended += _feed(decoder, *each)
    if ended:
        with _ending(*(job for job, _ in ended)):
            for (job, _), row in zip(ended, _logits(decoder, [hidden for _, hidden in ended]), strict=True):
                with _ending(job):
                    job.take(row)
    return room - left


def _passes(decoder: Decoder, pieces: list[Piece], decodes: int) -> list[tuple[list[Piece], int]]:
    """The pieces of a step, the first `decodes` of which are decode rows, by the passes that they go in."""
    if decoder.deterministic:
        return [([piece], int(index < decodes)) for index, piece in enumerate(pieces)]
    most = decoder.program.rows
    if not 0 < decodes <= most:
        return [(pieces, decodes)]
    # Few rows are taken by the kernel, which costs less than to drive modules for them among many; of prompts those go
    # along that are taken by it, too.
    along, others, rows = pieces[:decodes], list[Piece](), decodes
    for piece in pieces[decodes:]:
        goes = piece.job.state.plain and rows + len(piece.tokens) <= most
        (along if goes else others).append(piece)
        rows += len(piece.tokens) if goes else 0
    return [(along, decodes), (others, 0)]


@contextmanager
def _ending(*jobs: Job) -> Iterator[None]:
    """Jobs end with what is raised within; what is no error, such as Ctrl-C, is raised all the same."""
    try:
        yield
    except BaseException as error:
        for job in jobs:
            job.fail(error)
        if not isinstance(error, Exception):
            raise


def run(decoder: Decoder, jobs: Sequence[Job], rows: int) -> None:
    """Step until no job has anything to feed. Raises what one of them failed with."""
    while any(job.pending for job in jobs):
        step(decoder, jobs, rows)
    for job in jobs:
        if job.error is not None:
            raise job.error


def _logits(decoder: Decoder, hidden: list[Tensor]) -> Tensor | list[Tensor]:
    """[1, hidden] each -> [vocab] float32 each."""
    if decoder.deterministic:
        return [logits_of(decoder, row)[0] for row in hidden]
    return logits_of(decoder, torch.cat(hidden))


def _feed(decoder: Decoder, pieces: list[Piece], decodes: int) -> Last:
    """One pass of all pieces, the first `decodes` of which are decode rows."""
    if not pieces:
        return []
    batch = [(piece.job.state, piece.tokens) for piece in pieces]
    with _ending(*(piece.job for piece in pieces)):
        hidden = finish(decoder, walk(decoder, batch, [index < decodes for index in range(len(batch))]))
        ended: Last = []
        for index, ((job, _, of_prompt), rows) in enumerate(zip(pieces, hidden, strict=True)):
            with _ending(job):  # who is told of it may raise, and that is nobody else's end
                if index < decodes:
                    job.token = None
                    ended.append((job, rows[-1:]))
                else:
                    ended += _passed(job, of_prompt, rows)
        return ended
    return []


def _go_on(decoder: Decoder, job: Job, rows: int) -> tuple[int, Last]:
    """Go on with a pass that takes several steps, for as much work as `rows` tokens are in all layers.

    Returns how many it was, and the job if that was the end of its prompt.
    """
    assert job._walk is not None
    tokens, steps = job._walk.of_prompt, job._walk.steps
    layers, done = decoder.shape.layers, 0
    ended: Last = []
    with _ending(job), decoder.inferring():
        try:
            while done < rows * layers:
                done += next(steps)
        except StopIteration as end:
            job._walk = None
            ended = _passed(job, tokens, end.value[0])
    return -(-done // layers), ended


def _passed(job: Job, tokens: int, rows: Tensor) -> Last:
    """So many tokens of a prompt have gone through the layers; none where some were read once more."""
    if not tokens:
        return []
    job.prompt = job.prompt[tokens:]
    job.progress(tokens)
    job.passed(rows)
    return [] if job.prompt else [(job, rows[-1:])]
