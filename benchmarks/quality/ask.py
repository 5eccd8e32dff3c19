"""One question under all arms, one after another, on one engine: what they compute alike is computed once."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from winnow import LLM, Plan, SamplingParams, Stats
from winnow.engine.engine import Engine
from winnow.engine.request import Completion
from winnow.evaluation.evaluate import Case, Progress, silent
from winnow.tasks import Example

RETAINED = 2**33  # bytes: of one question's arms more than there are
SPENT = (
    "prompt_tokens", "new_tokens", "rows_full", "units_read", "units_full", "pairs_read", "pairs_full",
    "cache_bytes", "held_bytes", "aux_bytes", "total_bytes", "slow_steps", "fast_steps", "revived_rows",
)  # fmt: skip


@dataclass(frozen=True)
class Reply:
    """What a plan makes of a question: its text, or the likeliest option and the log-probabilities of all.

    score: 0 .. 1, by the task. costs: see `spent`.
    """

    text: str
    score: float
    finish_reason: str | None
    costs: dict[str, int]
    log_probs: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def replies(llm: LLM, case: Case, plans: Sequence[Plan], *, progress: Progress = silent) -> Iterator[Reply]:
    """The reply of every plan in turn, full attention's first, on an engine that retains what the ones before computed.

    Text is chosen greedily; of options, the one with the highest log-probability, of all its tokens together.
    progress: called with the number of prompt tokens just processed. Raises as `LLM.generate`, before any work.
    """
    ask = _chosen if case.example.options else _written
    for plan in plans:
        llm.check([case.ids], case.params, plan=plan)
    with llm.engine(
        retain_bytes=RETAINED, max_sequences=max(1, len(case.example.options)), progress=progress
    ) as engine:
        for plan in plans:
            yield ask(llm, engine, case, plan)


def spent(stats: Stats) -> dict[str, int]:
    """The counted costs, as if nothing had been there before: a token that was gone on from counts the rows it took.

    cache_bytes are the units held at the end, held_bytes all that is held then, aux_bytes the most beside units,
    total_bytes the most of both at once.
    """
    return {
        "rows_computed": stats.rows_computed + stats.cached_rows,
        **{name: getattr(stats, name) for name in SPENT},
    }


def _written(llm: LLM, engine: Engine, case: Case, plan: Plan) -> Reply:
    [request] = llm.check([case.ids], case.params, plan=plan)
    [done] = [each.completion for each in engine.follow(request) if each.completion is not None]
    assert case.score is not None  # every task of the protocol scores
    costs = spent(done.stats)
    return Reply(done.text, case.score(case.example, done.text), done.finish_reason, costs)


def _chosen(llm: LLM, engine: Engine, case: Case, plan: Plan) -> Reply:
    """Every option is fed as a sample of the prompt; what is spent is counted for the right one.

    Samples whose option is shorter go on to the length of the longest, drawn with a seed: that is counted, and no more.
    """
    given = option_ids(llm, case.example)
    # Samples of one prompt have to be drawn; what is drawn before a given token is never used.
    params = SamplingParams(
        max_tokens=max(map(len, given)), n=len(given), temperature=1.0, seed=0, ignore_eos=True, logprobs=0
    )
    [request] = llm.check([case.ids], params, plan=plan)
    found = (each.completion for each in engine.follow(request.going_on(given)))
    done = sorted((each for each in found if each is not None), key=lambda each: each.sample_index)
    sums = tuple(_log_prob(each, ids) for each, ids in zip(done, given, strict=True))
    options = case.example.options
    text = options[sums.index(max(sums))]
    assert case.score is not None
    right = next(index for index, option in enumerate(options) if case.score(case.example, option) == 1)
    costs = spent(done[right].stats)
    return Reply(text, case.score(case.example, text), None, costs, sums)


def option_ids(llm: LLM, example: Example) -> list[list[int]]:
    """Token ids of every option as it follows the prompt: after a header as it is, after other text with a space."""
    assert llm.tokenizer is not None  # the prompt is text
    header = example.chat and llm.tokenizer.chat_template and not example.opening
    space = "" if header else " "
    return [llm.tokenizer(f"{space}{option}", add_special_tokens=False)["input_ids"] for option in example.options]


def _log_prob(done: Completion, ids: Sequence[int]) -> float:
    """Of the first tokens of a sample, all together."""
    assert done.logprobs is not None
    assert done.token_ids[: len(ids)] == list(ids)
    return sum(each[token] for each, token in zip(done.logprobs, ids, strict=False))
