"""One prefill, gone on from twice: the plan's own answer, timed as `LLM.generate` times it, and another's answer."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from winnow.bench.fidelity import log_probs_along
from winnow.runtime.forward import decode, prefill
from winnow.runtime.generate import Completion, Request, Running
from winnow.runtime.llm import LLM
from winnow.runtime.sampling import Sampler
from winnow.runtime.scorer import admit
from winnow.runtime.sequence import Sequence as State
from winnow.runtime.text import TextStream


@dataclass(frozen=True)
class Branches:
    """A prompt that has been answered, and its state as it was before the first new token: `follow` uses it up."""

    done: Completion
    _llm: LLM
    _state: State
    _logits: Tensor  # [vocab], after the prompt

    def follow(self, tokens: Sequence[int]) -> Iterator[Tensor]:
        """Log-probabilities at the place of each of `tokens`, [vocab] float32, as if they had been the answer."""
        return log_probs_along(self._llm.decoder, self._state, self._logits, list(tokens))


def branch(llm: LLM, request: Request, progress: Callable[[int], None] = lambda tokens: None) -> Branches:
    """Answer one request of `LLM.check`. Copying the state is in no time of its stats; it doubles the memory held."""
    started, params = time.perf_counter(), request.params
    state, prompt = admit(llm.decoder, llm.tokenizer, request.plan, request.ids, params.max_tokens, llm.prefill_chunk)
    progress(state.omitted)
    logits = after = prefill(llm.decoder, state, prompt, llm.prefill_chunk, progress)
    spent = time.perf_counter() - started
    twin = state.fork()
    text = TextStream(llm.tokenizer, tuple(params.stop)) if llm.tokenizer is not None else None
    sampler = Sampler(params, request.ids, llm.decoder.device)
    running = Running(request, state, sampler, time.perf_counter() - spent, 0, text)
    running.take(logits)
    while running.finish_reason is None:
        [logits] = decode(llm.decoder, [(state, running.tokens[-1])])
        running.take(logits)
    return Branches(running.completion(), llm, twin, after)
