"""A chat over a document, turn by turn, on an engine that retains what has ended: time to the first token of each.

The last turns are asked of an engine that retains nothing, too: is the answer the same?
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from winnow import LLM, Plan, SamplingParams
from winnow.engine.engine import Engine
from winnow.engine.request import Completion, Request
from winnow.evaluation.evaluate import Progress, silent
from winnow.runtime.llm import Message

QUESTIONS = (
    "Who is spoken of here, and where are they?",
    "What happens first?",
    "And what comes of it?",
    "Who is against it, and why?",
    "Say that again in one sentence.",
)
RETAIN = 2**40  # more than any chat takes


@dataclass(frozen=True)
class Chats:
    """What every plan is asked. turns: of a chat; new: tokens of an answer; again: how many of the last turns an engine
    that retains nothing is asked, too; max_cache_bytes: all that either engine may hold, None: whatever is needed."""

    document: str
    turns: int
    new: int
    repeats: int
    again: int
    max_cache_bytes: int | None


@dataclass(frozen=True)
class TurnTaken:
    """One turn. prompt, cached: tokens of all that was said, and how many of them were taken over; rows: that were
    computed, summed over layers, those of new tokens too; held: the most bytes after any step, of what is retained and
    what is reserved; same: whether an engine that retains nothing answers so, None where it was not asked."""

    plan: str
    chat: int
    turn: int
    prompt: int
    cached: int
    rows: int
    ttft_s: float
    held: int
    same: bool | None


@dataclass(frozen=True)
class TurnsRow:
    """A plan, over its chats. first_s: TTFT of first turns, the median; later_s: of the others; of_first, worst: these
    over the first of their chat, the median and the largest; rows: computed in a later turn over those of the first,
    the median; new: tokens computed in a later turn, the median; held: the most bytes after any step; same: of the
    answers compared, those that are equal."""

    plan: str
    chats: int
    first_s: float
    later_s: float
    of_first: float
    worst: float
    rows: float
    new: float
    held: int
    compared: int
    same: int


def measure_turns(llm: LLM, plans: Sequence[Plan], chats: Chats, progress: Progress = silent) -> Iterator[TurnTaken]:
    """Chats by every plan in turns; progress: called with 1 after every turn.

    Raises CapacityError where a prompt can never fit.
    """
    for chat in range(chats.repeats):
        for plan in plans:
            for taken in _chat(llm, plan, chat, chats):
                yield taken
                progress(1)


def _chat(llm: LLM, plan: Plan, chat: int, chats: Chats) -> Iterator[TurnTaken]:
    params = SamplingParams(max_tokens=chats.new, ignore_eos=True)
    said: list[Message] = []
    limit = chats.max_cache_bytes
    with (
        llm.engine(retain_bytes=RETAIN, max_cache_bytes=limit) as engine,
        llm.engine(max_cache_bytes=limit) as forgetful,
    ):
        for turn in range(chats.turns):
            question = QUESTIONS[turn % len(QUESTIONS)]
            said.append({"role": "user", "content": question if turn else f"{chats.document}\n\n{question}"})
            [request] = llm.check([llm.render(said)], params, plan=plan)
            answer, held = _answer(engine, request)
            same = None
            if turn and turn >= chats.turns - chats.again:
                same = _answer(forgetful, request)[0].token_ids == answer.token_ids
            stats = answer.stats
            tokens = stats.prompt_tokens, stats.cached_tokens
            yield TurnTaken(str(plan), chat, turn, *tokens, stats.rows_computed, stats.ttft_s, held, same)
            said.append({"role": "assistant", "content": answer.text})


def _answer(engine: Engine, request: Request) -> tuple[Completion, int]:
    """What the engine answers, and the most bytes that are retained and reserved after any step."""
    answer, held = None, 0
    for output in engine.follow(request):
        answer, held = output.completion, max(held, engine.retained_bytes + engine.reserved_bytes)
    assert answer is not None
    return answer, held


def summarise_turns(taken: Sequence[TurnTaken]) -> list[TurnsRow]:
    """A row per plan of which a chat has two turns at least."""
    rows = []
    for plan in dict.fromkeys(each.plan for each in taken):
        mine = [each for each in taken if each.plan == plan]
        first = {each.chat: each for each in mine if each.turn == 0}
        later = [each for each in mine if each.turn]
        if later:
            of_first = [each.ttft_s / first[each.chat].ttft_s for each in later]
            rows.append(
                TurnsRow(
                    plan,
                    len(first),
                    statistics.median(each.ttft_s for each in first.values()),
                    statistics.median(each.ttft_s for each in later),
                    statistics.median(of_first),
                    max(of_first),
                    statistics.median(each.rows / first[each.chat].rows for each in later),
                    statistics.median(each.prompt - each.cached for each in later),
                    max(each.held for each in mine),
                    sum(each.same is not None for each in mine),
                    sum(each.same is True for each in mine),
                )
            )
    return rows
