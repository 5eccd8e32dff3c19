"""A chat over a document, turn by turn, on an engine that retains what has ended: time to the first token of each."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from winnow import LLM, Plan, SamplingParams
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
class TurnTaken:
    """One turn. prompt, cached: tokens of all that was said, and how many of them were taken over; retained: bytes
    afterwards."""

    plan: str
    chat: int
    turn: int
    prompt: int
    cached: int
    ttft_s: float
    retained: int


@dataclass(frozen=True)
class TurnsRow:
    """A plan, over its chats. first_s: TTFT of first turns, the median; later_s: of the others; of_first, worst: these
    over the first of their chat, the median and the largest; new: tokens computed in a later turn, the median."""

    plan: str
    chats: int
    first_s: float
    later_s: float
    of_first: float
    worst: float
    new: float
    retained: int


def measure_turns(
    llm: LLM,
    plans: Sequence[Plan],
    document: str,
    *,
    turns: int,
    new: int,
    repeats: int,
    progress: Progress = silent,
) -> Iterator[TurnTaken]:
    """Chats of so many turns by every plan in turns, each answer of `new` tokens; progress: called after every turn."""
    for chat in range(repeats):
        for plan in plans:
            for taken in _chat(llm, plan, document, chat, turns, new):
                yield taken
                progress(1)


def _chat(llm: LLM, plan: Plan, document: str, chat: int, turns: int, new: int) -> Iterator[TurnTaken]:
    params = SamplingParams(max_tokens=new, ignore_eos=True)
    said: list[Message] = []
    with llm.engine(retain_bytes=RETAIN) as engine:
        for turn in range(turns):
            question = QUESTIONS[turn % len(QUESTIONS)]
            said.append({"role": "user", "content": question if turn else f"{document}\n\n{question}"})
            [request] = llm.check([llm.render(said)], params, plan=plan)
            *_, last = engine.follow(request)
            assert last.completion is not None
            stats = last.completion.stats
            yield TurnTaken(
                str(plan), chat, turn, stats.prompt_tokens, stats.cached_tokens, stats.ttft_s, engine.retained_bytes
            )
            said.append({"role": "assistant", "content": last.completion.text})


def summarise_turns(taken: Sequence[TurnTaken]) -> list[TurnsRow]:
    """A row per plan of which a chat has two turns at least."""
    rows = []
    for plan in dict.fromkeys(each.plan for each in taken):
        mine = [each for each in taken if each.plan == plan]
        first = {each.chat: each.ttft_s for each in mine if each.turn == 0}
        later = [each for each in mine if each.turn]
        if later:
            of_first = [each.ttft_s / first[each.chat] for each in later]
            rows.append(
                TurnsRow(
                    plan,
                    len(first),
                    statistics.median(first.values()),
                    statistics.median(each.ttft_s for each in later),
                    statistics.median(of_first),
                    max(of_first),
                    statistics.median(each.prompt - each.cached for each in later),
                    max(each.retained for each in mine),
                )
            )
    return rows
