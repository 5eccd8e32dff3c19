"""What the engine is asked and what it answers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from winnow.engine.grammar import Grammar
from winnow.errors import InputError
from winnow.plan import Plan
from winnow.runtime.observer import Observer
from winnow.sampling import SamplingParams
from winnow.stats import Stats

FinishReason = Literal["stop", "length", "abort", "error"]
Likeliest = dict[int, float]  # log-probabilities by token id: of the likeliest ones and of the token itself


@dataclass
class Completion:
    """One continuation of one prompt.

    text: without stop strings and special tokens; empty where the model has no tokenizer. token_ids: the new tokens,
    with the stop token that ended them, if one did. finish_reason: "stop" (a stop token or string), "length"
    (`max_tokens`), "abort", or "error", and then `error` is what was raised. logprobs: per new token, {token id:
    log-probability} of the likeliest ones and of itself; prompt_logprobs: the same per token of the prompt, of which
    the first has none. prompt_index, sample_index: which prompt of a call, and which of its `n` samples.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    stats: Stats
    prompt_index: int = 0
    sample_index: int = 0
    logprobs: list[Likeliest] | None = None
    error: BaseException | None = None
    prompt_logprobs: list[Likeliest | None] | None = None


@dataclass(frozen=True)
class Request:
    """A prompt that has been checked: token ids, parameters, plan, the tokens that end it, and what may come.

    salt: it goes on from retained sequences of requests with the same one, and from no others. given: of each sample,
    the tokens that it begins with, since another engine has chosen them; none where it is not gone on with. observer:
    looks at its one sample while it runs.
    """

    index: int
    ids: list[int]
    params: SamplingParams
    plan: Plan
    stop_tokens: frozenset[int]
    grammar: Grammar | None = None
    salt: str | None = None
    given: tuple[tuple[int, ...], ...] = ()
    observer: Observer | None = None

    def going_on(self, given: Sequence[Sequence[int]]) -> "Request":
        """The request whose samples, in their order, have come to these tokens elsewhere; of samples not named: none.

        The prompt is computed as ever, and the tokens are fed one decode step each, as they were when they were chosen:
        as a part of the prompt a plan might compute, keep and read them otherwise. The seed goes on where it was, and
        outputs show the tokens again. On a deterministic model all that follows is, to the bit, what would have come.
        Raises InputError where there are more samples, or more tokens of one, than were asked for.
        """
        n, most = self.params.n, self.params.max_tokens
        if len(given) > n:
            raise InputError(f"given: tokens of {len(given)} samples, and n={n}; give those of {n} at most")
        if (longest := max(map(len, given), default=0)) > most:
            raise InputError(f"given: {longest} tokens of a sample are more than max_tokens={most}")
        return replace(self, given=tuple(map(tuple, given)))


@dataclass(frozen=True)
class Output:
    """What a step brought to one sample of a request.

    token_ids: new ones, and logprobs: of each, as in Completion; text: what has become certain, never a part of a stop
    string. completion: all of it, once the sample has ended; None before. prompt_logprobs: with the first token.
    stats: what it has cost so far, which grows while the sample goes on; None where there was no sample.
    """

    request_id: int
    sample_index: int
    token_ids: list[int]
    text: str
    completion: Completion | None = None
    prompt_index: int = 0
    logprobs: list[Likeliest] | None = None
    prompt_logprobs: list[Likeliest | None] | None = None
    stats: Stats | None = None
