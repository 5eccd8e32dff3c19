"""One prefill, gone on from twice: the plan's own answer, timed as `LLM.generate` times it, and another's answer."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from winnow.engine.request import Completion, Request
from winnow.engine.session import Session
from winnow.evaluation.fidelity import log_probs_along
from winnow.runtime.llm import LLM


@dataclass(frozen=True)
class Branches:
    """A prompt that has been answered, and its state as it was before the first new token: `follow` uses it up."""

    done: Completion
    _session: Session

    def follow(self, tokens: Sequence[int]) -> Iterator[Tensor]:
        """Log-probabilities at the place of each of `tokens`, [vocab] float32, as if they had been the answer."""
        return log_probs_along(self._session, list(tokens))


def branch(llm: LLM, request: Request, progress: Callable[[int], None] = lambda tokens: None) -> Branches:
    """Answer one request of `LLM.check`. Copying the state is in no time of its stats; it doubles the memory held."""
    session = llm.session(plan=request.plan, max_tokens=request.params.max_tokens)
    session.feed(request.ids, progress=progress)
    twin = session.fork()
    return Branches(session.generate(request), twin)
