"""How steady the support of attention is while a model answers, and how much a selection that ages still catches.

Everything is read at every step; what slow-fast reading would have read stands by. Source: Slow-Fast Inference,
arXiv:2603.12038, Figures 1 and 2, whose text gives no formulas.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from winnow.diagnosis.diagnose import observe
from winnow.diagnosis.shadow import Shadow, Shadowed
from winnow.diagnosis.support_figures import Steps
from winnow.engine.request import Request
from winnow.errors import InputError
from winnow.evaluation.evaluate import Progress, cases, check_lengths, silent
from winnow.plan import Plan
from winnow.policies.base import ModelShape
from winnow.policies.read.selection import Sizes
from winnow.policies.read.slowfast import SlowFast
from winnow.policies.read.trigger import boundaries_of
from winnow.runtime.llm import LLM
from winnow.runtime.observer import Attended, Observer
from winnow.sampling import SamplingParams
from winnow.tasks import Task

SHARE = 16  # of the prompt: the budget where none is given


def support_tasks(
    llm: LLM,
    tasks: Sequence[Task],
    length: int,
    examples: int,
    *,
    policy: SlowFast | None = None,
    max_tokens: int | None = None,
    ignore_eos: bool = False,
    seed: int = 0,
    progress: Progress = silent,
) -> Iterator[Steps]:
    """Answer seeded examples greedily under full attention; yields what was measured of each, for `summarise_support`.

    policy: when and how to select; its budget is the size of the support. None: slowfast(budget=length // 16).
    max_tokens: the longest answer, instead of the task's own limit. progress: called with the number of prompt tokens
    just processed. Raises, before any work: InputError, CapacityError, PlanError where something cannot be run.
    """
    policy = policy or SlowFast(budget=max(1, length // SHARE))
    check_lengths(llm, ["full"], [length])

    def made(count: int) -> Iterator[Request]:
        for case in cases(llm, tasks, [length], count, seed=seed):
            params = SamplingParams(max_tokens=max_tokens or case.example.max_tokens, ignore_eos=ignore_eos)
            yield _request(llm, case.ids, params, policy)

    list(made(1))
    return _measured(llm, made(examples), policy, progress)


def support_prompts(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    policy: SlowFast | None = None,
    progress: Progress = silent,
) -> Iterator[Steps]:
    """Like `support_tasks`, on token ids of the caller's own. params: greedy; length: of the shortest prompt."""
    policy = policy or SlowFast(budget=max(1, min(map(len, prompts)) // SHARE))
    return _measured(llm, [_request(llm, ids, params, policy) for ids in prompts], policy, progress)


def _request(llm: LLM, ids: Sequence[int], params: SamplingParams, policy: SlowFast) -> Request:
    """Raises what `LLM.generate` would, and InputError where there is nothing to measure."""
    if llm.tokenizer is None or not boundaries_of(llm.tokenizer).enders:
        raise InputError(
            "the model has no tokenizer with a token that ends a sentence (such as '.', '?' or '!'), so no step is at "
            "the start of one; use a model that has"
        )
    [request] = llm.check([list(ids)], params, plan=Plan(read=Shadowed(policy)))
    if params.temperature != 0 or params.n != 1 or params.max_tokens < 2:
        raise InputError(
            f"temperature={params.temperature:g}, n={params.n}, max_tokens={params.max_tokens}: the support is watched "
            "over one greedy answer of at least 2 tokens; use temperature=0, n=1 and max_tokens=2 or more"
        )
    least, seen = Sizes(policy.sink, policy.budget, policy.recent).total, _widest(llm.decoder.shape, len(ids))
    if seen < least:
        raise InputError(
            f"budget={policy.budget} with sink={policy.sink} and recent={policy.recent} selects from {least} units or "
            f"more, and after a prompt of {len(ids)} tokens no layer has more than {seen}; use smaller ones, or longer "
            "prompts"
        )
    return request


def _widest(shape: ModelShape, prompt: int) -> int:
    """The most units of a prompt that a layer sees, per KV head."""
    return max(prompt if window is None else min(window, prompt) for window in shape.windows)


def _measured(llm: LLM, requests: Iterable[Request], policy: SlowFast, progress: Progress) -> Iterator[Steps]:
    for request in requests:
        observer = SupportObserver(llm.decoder.shape, policy)
        observe(llm, request, observer, progress)
        yield observer.steps


class SupportObserver(Observer):
    """Compares each decode step of one sequence under `Shadowed(policy)` with the one before and with the last
    selection. Memory: one row of attention, and per layer two supports."""

    def __init__(self, shape: ModelShape, policy: SlowFast) -> None:
        self.steps = Steps(policy, shape.layers, shape.kv_heads)
        self._windows = shape.windows
        # Per layer the supports, positions [kv_heads, k], of the step before and of the last refresh, and its step.
        self._before: dict[int, Tensor] = {}
        self._chosen: dict[int, Tensor] = {}
        self._refreshed: dict[int, int] = {}

    def attended(self, attended: Attended) -> None:
        part, layer = attended.part, attended.layer
        if not part.decode and part.first + part.rows < part.sequence.prompt:
            return
        shadow = part.sequence.reader
        assert isinstance(shadow, Shadow)
        if layer == 0:
            self.steps.begin(slow=shadow.slows, boundary=shadow.boundary)
        weights, positions = attended.weights()  # [q_heads, units], [units], without gaps
        mass = weights.view(self.steps.kv_heads, -1, weights.shape[1]).mean(1)  # [kv_heads, units]
        first, note = int(positions[0]), self.steps.note
        for measure, read in (("recall", shadow.last.get(layer)), ("fresh", shadow.fresh.get(layer))):
            if read is not None:
                note(layer, measure, held(mass, first, read))
                note(layer, "best", mass.topk(min(read.shape[1], len(positions))).values.sum(-1))
        if layer in shadow.last:
            self.steps.distances[-1][layer] = shadow.step - self._refreshed[layer]
        if layer in shadow.fresh:
            self._refreshed[layer] = shadow.step
        k, window = self.steps.policy.budget, self._windows[layer]
        if min(len(positions), window or len(positions)) < k:
            return
        support = mass.topk(k).indices  # [kv_heads, k]
        marked = torch.zeros_like(mass).scatter_(1, support, 1 / k)
        for measure, before in (("overlap", self._before), ("since", self._chosen)):
            if layer in before:
                note(layer, measure, held(marked, first, before[layer]))
        self._before[layer] = support + first
        if layer in shadow.fresh:
            self._chosen[layer] = support + first


def held(values: Tensor, first: int, positions: Tensor) -> Tensor:
    """The sum [kv_heads] of `values`, [kv_heads, units] at the positions from `first` on, over `positions` [kv_heads,
    some]; a position that is not among them holds nothing."""
    index = positions - first
    inside = (index >= 0) & (index < values.shape[1])
    return (values.gather(1, index.clamp(0, values.shape[1] - 1)) * inside).sum(1, dtype=torch.float64)
