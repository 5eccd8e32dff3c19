"""A sequence fed by hand: teacher forcing, several questions over one prompt, a look at what a plan does."""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from winnow.engine.job import Job, run
from winnow.engine.request import Completion, Request
from winnow.engine.retained import FAR, Retained, prefix_of
from winnow.engine.sample import Sample
from winnow.engine.services import admit
from winnow.errors import CapacityError, InputError, PlanError
from winnow.parameters import check_whole
from winnow.plan import Plan
from winnow.runtime.decoder import Decoder
from winnow.runtime.observer import Observer
from winnow.runtime.sequence import HEADROOM, Prefix
from winnow.runtime.sequence import Sequence as State
from winnow.sampling import SamplingParams
from winnow.stats import Stats

if TYPE_CHECKING:
    from winnow.runtime.llm import LLM


@dataclass(frozen=True)
class Held:
    """What a session holds now. units: cache units; unit_bytes: of these; beside_bytes: of what policies hold beside.

    bound_bytes: the most that units can ever take, by the keep policy's closed formula; None: the text's own length.
    """

    units: int
    unit_bytes: int
    beside_bytes: int
    bound_bytes: int | None


class Session:
    """A text under a plan: the prompt is fed first, then whatever the caller likes. Made by `LLM.session`.

    plan: what it runs under; most: the most tokens after the prompt that its logits predict, so that one less may be
    fed; prompt: the prompt's token ids that the model sees, which is fewer where the plan shortens it. logits: [vocab]
    float32, after the last token fed.
    As a context manager it gives its memory back at the end.
    """

    def __init__(self, llm: "LLM", plan: Plan, most: int, observer: Observer | None = None) -> None:
        self.plan, self.most = plan, most
        self.prompt: list[int] = []
        self.logits = torch.empty(0, dtype=torch.float32)
        self._llm, self._observer = llm, observer
        self._begun: State | None = None
        self._seen: list[int] = []  # the prompt as it was given, and all that was fed after it
        self._fed = 0
        self._seconds = [0.0, 0.0]  # of the prompt, of all

    def feed(self, ids: Sequence[int], *, progress: Callable[[int], None] = lambda tokens: None) -> Tensor:
        """Feed token ids: the first call takes the prompt, in chunks; later ones a decode step for each token.

        progress: called with the number of prompt tokens just processed.
        Returns float32 logits: after the prompt [1, vocab], later [len(ids), vocab], after each token.
        Raises InputError, CapacityError or PlanError before anything is fed.
        """
        start, tokens, first = time.perf_counter(), self._llm.token_ids(ids), self._begun is None
        there = None
        if self._begun is None:
            state = self._admit(tokens)
            fed, there = _Fed(state, self.prompt, progress=progress), state.omitted
            self._seen = tokens
        else:
            self._check_room(len(tokens))
            fed = _Fed(self._begun, [], tokens[0], following=tokens[1:])
            self._fed += len(tokens)
            self._seen += tokens
        self._run([fed], self._llm.prefill_chunk, there)
        took = time.perf_counter() - start
        self._seconds[1] += took
        if first:
            self._seconds[0] = took
        self.logits = fed.rows[-1]
        return torch.stack(fed.rows)

    def fill(self, keys: Tensor, values: Tensor) -> None:
        """Begin with units instead of a prompt, the same in every layer, held as the plan holds them after a prefill.

        keys, values: [kv_heads, tokens, head_dim]. For timing a step after a prompt that would take minutes to
        compute; what evicts by scores keeps the newest units, what prunes prompt tokens by attention keeps all.
        Raises InputError where there is a prompt already.
        """
        _fill(self._llm.decoder, self._admit([0] * keys.shape[1]), keys, values)
        self.state.quantize(self._llm.decoder)

    def fork(self, at: int | None = None) -> "Session":
        """An independent session that goes on from here: the same logits come out of both for the same tokens.

        The units so far lie in memory that both share. at: how many tokens, the prompt's included, it is to have seen;
        None: all. Raises InputError where there were not so many, and PlanError where what was kept then is not known
        any more: where a plan chooses, or holds units otherwise than they came; or, within the prompt, where rows have
        read what a longer prompt chose for them.
        """
        twin, known = copy.copy(self), self.state.position
        twin._begun, twin._seconds, twin._seen = self.state.fork(), list(self._seconds), list(self._seen)
        if at is None:
            return twin
        check_whole(at=at)
        if at == known:
            return twin
        if at > known:
            raise InputError(f"at={at!r} must be from 1 to the {known} tokens that the session has seen")
        skipped = at < len(self.prompt) and not self.plan.prefill.identity
        if skipped or not self.plan.holds_all or any(cache.dropped for cache in self.state.caches):
            raise PlanError(
                f"what {self.plan} kept after {at} tokens is not known any more; fork a session that is there"
            )
        twin._begun.cut(at)
        twin.prompt, twin._fed, twin.logits = (
            self.prompt[:at],
            max(0, at - len(self.prompt)),
            torch.empty(0, dtype=torch.float32),
        )
        del twin._seen[at:]
        return twin

    def turn(self, ids: Sequence[int], *, progress: Callable[[int], None] = lambda tokens: None) -> "Session":
        """The next turn: a session whose prompt is all that this one has seen, and `ids` after it.

        It is that of a session which is fed the whole of it, and computes only what the plan's `prefix_stable` does not
        let be taken over from here: `stats.cached_tokens` says how much was. This one may go on as it likes.
        Raises like `feed`, and InputError where the session began with units instead of a prompt.
        """
        llm, state = self._llm, self.state
        self._check_room(0)
        if len(self._seen) != state.omitted + state.position:
            raise InputError("the session began with units, and of what text they are is not known")
        twin = Session(llm, self.plan, self.most, self._observer)
        [request] = llm.check(
            [[*self._seen, *llm.token_ids(ids)]], SamplingParams(max_tokens=self.most), plan=self.plan
        )
        retained = Retained(llm.decoder, FAR, llm.prefill_chunk)
        kind = retained.kind(request)
        retained.put(kind, self._seen, state.fork())
        start = time.perf_counter()
        found = retained.find(request, kind, self.plan.compute.full_depth(request.ids, llm.services))
        state = twin._admit(request.ids, None if found is None else prefix_of(*found, FAR))
        fed = _Fed(state, twin.prompt[state.position :], progress=progress)
        twin._seen = request.ids
        twin._run([fed], llm.prefill_chunk, state.omitted + state.position)
        twin.logits, twin._seconds = fed.rows[-1], [time.perf_counter() - start] * 2
        return twin

    def generate(self, request: Request) -> Completion:
        """Answer one request of `LLM.check` whose prompt is all that has been fed; the session ends with it."""
        llm, started = self._llm, time.perf_counter() - self._seconds[0]
        sample = Sample.of(request, self.state, llm.tokenizer, started)
        sample.take(self.logits)
        self._run([sample], llm.prefill_chunk)
        return sample.completion()

    @property
    def stats(self) -> Stats:
        """What it has cost so far, a copy; new_tokens: how many tokens after the prompt its logits have predicted."""
        state = self.state
        if state.caches:  # a closed one has been measured
            state.measure()
        stats = copy.copy(state.stats)
        stats.new_tokens, (stats.ttft_s, stats.total_s) = self._fed + 1, self._seconds
        return stats

    @property
    def held(self) -> Held:
        """What it holds now."""
        state = self.state
        units = sum(cache.units for cache in state.own_caches())
        unit_bytes = sum(cache.nbytes for cache in state.own_caches())
        return Held(units, unit_bytes, state.held()[1], state.bound_bytes(self.most - 1))

    def close(self) -> None:
        """Give the memory back; nothing can be fed after."""
        if self._begun is not None and self._begun.caches:
            self._begun.measure()
            self._begun.release()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def state(self) -> State:
        """What the runtime knows of it: for inspectors. Raises InputError before the prompt."""
        if self._begun is None:
            raise InputError("the session has no prompt yet; feed it one")
        return self._begun

    def _admit(self, ids: list[int], prefix: Prefix | None = None) -> State:
        if self._begun is not None:
            raise InputError("the session has a prompt already; make a new one")
        llm = self._llm
        self.plan.prepare(llm.services, ids, self.most)
        self._begun, self.prompt = admit(
            llm.decoder, llm.tokenizer, self.plan, ids, self.most - 1, llm.prefill_chunk, prefix
        )
        self._begun.observer = self._observer
        return self._begun

    def _run(self, jobs: Sequence[Job], rows: int, there: int | None = None) -> None:
        """Step until they have been fed; what is interrupted half-way is closed, since nobody can go on from there.

        there: how many tokens of a prompt that begins are not to be fed, of which its job is told first.
        """
        try:
            if there is not None:
                jobs[0].progress(there)
            run(self._llm.decoder, jobs, rows)
        except BaseException:
            self.close()
            raise

    def _check_room(self, tokens: int) -> None:
        if not self.state.caches:
            raise InputError("the session is closed; make a new one")
        if tokens > (room := self.most - 1 - self._fed):
            raise CapacityError(f"the session takes {room} more tokens, not {tokens}; make one with more max_tokens")


def feed_together(sessions: Sequence[Session], tokens: Sequence[int]) -> Tensor:
    """One decode step of several sessions of one LLM, a token each; returns logits [sessions, vocab] float32.

    Raises CapacityError, before any is fed, where one of them takes no more tokens, and InputError where they are not
    different sessions of one LLM that have begun, or there is not a token of its vocabulary for each.
    """
    if not sessions or len({id(session) for session in sessions}) < len(sessions):
        raise InputError("feed_together takes different sessions, one at least; feed one of them by itself")
    if any(session._llm is not sessions[0]._llm for session in sessions):
        raise InputError("feed_together takes sessions of one LLM; feed those of another apart")
    tokens = sessions[0]._llm.token_ids(tokens)
    if len(tokens) != len(sessions):
        raise InputError(f"feed_together has {len(tokens)} tokens for {len(sessions)} sessions; give each one")
    for session in sessions:
        session._check_room(1)
    start = time.perf_counter()
    fed = [_Fed(session.state, [], token) for session, token in zip(sessions, tokens, strict=True)]
    try:
        run(sessions[0]._llm.decoder, fed, len(fed))
    except BaseException:
        for session in sessions:
            session.close()
        raise
    for session, each, token in zip(sessions, fed, tokens, strict=True):
        session.logits = each.rows[-1]
        session._fed += 1
        session._seen.append(token)
        session._seconds[1] += time.perf_counter() - start
    return torch.stack([session.logits for session in sessions])


@dataclass(eq=False, kw_only=True)
class _Fed(Job):
    """Feeds the tokens that it is given and keeps the logits. following: the tokens after the next."""

    following: list[int] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)

    def take(self, logits: Tensor) -> None:
        self.rows.append(logits.clone())  # what inference made cannot be written to
        if len(self.rows) <= len(self.following):
            self.token = self.following[len(self.rows) - 1]


@torch.inference_mode()
def _fill(decoder: Decoder, state: State, keys: Tensor, values: Tensor) -> None:
    shape, device, length = state.shape, keys.device, keys.shape[1]
    held = state.plan.compute.layer_tokens(shape, length, state.deep).units
    known = {len(each): each for each in (state.deep.positions, state.deep.anchors)}
    noted = None if state.surprise is None else torch.zeros(length, dtype=torch.float32, device=device)
    state.position, state.repeats = length, ()
    for layer, cache in enumerate(state.caches):
        if state.holder(layer) != layer:
            continue
        # Where only the tokens that the plan names at the start stay in a layer, only theirs are given to it.
        places = torch.tensor(known.get(held[layer], range(length)), dtype=torch.int64, device=device)
        for positions in places[cache.length :].split(state.chunk):  # the first token's units may be there
            first, last = int(positions[0]), int(positions[-1])
            consecutive = last - first + 1 == len(positions)
            cache.append(keys[:, positions], values[:, positions], positions, first if consecutive else None)
            state.leave(layer)
        if state.plan.keep.next_eviction(0, length) is not None:
            state.evict(decoder, layer, HEADROOM, noted, late=True)
