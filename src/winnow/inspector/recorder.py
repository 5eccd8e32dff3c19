"""Record a generation: look at every layer while an engine runs it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Literal

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from winnow.cache.layer import LayerCache
from winnow.cache.view import NOBODY, View
from winnow.engine.request import Output, Request
from winnow.inspector.runs import runs_of
from winnow.inspector.trace import LayerStep, Snapshot, Step, Token, Trace
from winnow.kernels.attend.reference import visible
from winnow.plan import Plan
from winnow.policies.prompt.spelling import spell_each
from winnow.runtime.llm import LLM
from winnow.runtime.observer import Attended, Observer
from winnow.runtime.sequence import Sequence as State
from winnow.sampling import SamplingParams

Progress = Callable[[int], None]


class Follower(Observer):
    """What one request does, step by step; `trace` gives what has been recorded so far at any time.

    request: of one sample; `self.request` is the same, observed, and is to be put into an engine that retains nothing
    of its prompt.
    """

    def __init__(self, llm: LLM, request: Request) -> None:
        self._llm, self.request = llm, replace(request, observer=self)
        self._ids: list[int] = []
        self._prompt = 0
        self._finish_reason: str | None = None
        self._steps: list[Step] = []
        self._layers: list[_Watched] = []
        self._snapshots: list[Snapshot] = []
        self._taken: list[Snapshot] = []  # in the step in progress
        self._stats: dict[str, int] = {}

    @property
    def done(self) -> int:
        """How many steps are finished."""
        return len(self._steps)

    def begun(self, sequence: State, prompt: list[int]) -> None:
        """What the engine calls before the first step."""
        self._state, self._ids, self._prompt, self._steps, self._snapshots = sequence, list(prompt), len(prompt), [], []
        # What the plan has left out of the prompt is no step's.
        self._clear((0, sequence.omitted * sequence.shape.layers, 0))

    def chosen(self, sequence: State, token: int) -> None:
        """What the engine calls after every step: the prefill, then decode steps."""
        self._note("decode" if self._steps else "prefill", token)
        self._clear((sequence.position, sequence.stats.rows_full, sequence.stats.units_full))

    def follow(self, output: Output) -> None:
        """What whoever has the answer gives on: how it ended. A stop string or a schema is seen in no step."""
        if output.completion is not None and output.completion.finish_reason in ("stop", "length"):
            self._finish_reason = output.completion.finish_reason

    def trace(self) -> Trace:
        """What the finished steps did. At least the prefill has to be done."""
        decoder, state = self._llm.decoder, self._state
        ids = self._ids[: self._prompt + len(self._steps)]
        texts = token_texts(self._llm.tokenizer, ids)
        return Trace(
            model=Path(self._llm.model.config.name_or_path or "").name or self._llm.model.config.model_type,
            plan=str(self.request.plan),
            layers=decoder.shape.layers,
            kv_heads=decoder.shape.kv_heads,
            entrances=tuple(state.gates.at),
            prompt=self._prompt,
            omitted=state.omitted,
            tokens=tuple(map(Token, ids, texts)),
            finish_reason=self._finish_reason,
            stats=self._stats,
            steps=tuple(self._steps),
            snapshots=tuple(self._snapshots),
        )

    def _clear(self, before: tuple[int, int, int]) -> None:
        """A step begins. before: tokens fed, and what full attention would have computed and read so far."""
        self._layers = [_Watched() for _ in range(self._llm.decoder.shape.layers)]
        self._taken = []
        self._before = before

    def attended(self, attended: Attended) -> None:
        """What the runtime calls after the attention of rows in a layer."""
        seen, part, views = self._layers[attended.layer], attended.part, attended.views
        seen.computed.append(part.positions)
        seen.revived.append(part.positions[: part.late])
        if part.decode:
            seen.read += [_seen(view, part.positions) for view in views]
            seen.units += sum(view.total for view in views)

    def compressed(self, sequence: State) -> None:
        """What the runtime calls after it has compressed the caches."""
        self._taken.append(_snapshot(sequence, self._llm.decoder.shape.kv_heads))

    def _note(self, phase: Literal["prefill", "decode"], token: int) -> None:
        """The step just done, which chose `token`."""
        state, (first, rows_full, units_full) = self._state, self._before
        layers = []
        for layer, (seen, cache) in enumerate(zip(self._layers, state.caches, strict=True)):
            aside = [state.aside[layer].live] if layer in state.aside else []
            layers.append(
                LayerStep(
                    computed=runs_of(seen.computed),
                    revived=runs_of(seen.revived),
                    read=runs_of(seen.read),
                    held=runs_of(_of_heads(cache)),
                    aside=runs_of(aside),
                    units_read=seen.units,
                    units_held=cache.units if state.holder(layer) == layer else 0,
                )
            )
        step = Step(
            phase=phase,
            fed=(first, state.position),
            produced=len(self._ids),
            rows_full=state.stats.rows_full - rows_full,
            units_full=state.stats.units_full - units_full,
            slow=state.reader.slow if phase == "decode" else None,
            layers=tuple(layers),
        )
        if phase == "prefill" and not any(snapshot.known == state.position for snapshot in self._taken):
            self.compressed(state)
        self._ids.append(token)
        self._steps.append(step)
        self._snapshots += self._taken
        state.measure()
        state.stats.new_tokens = len(self._steps)
        # Now, not when the trace is asked for: an interrupted step has counted rows that no step shows.
        self._stats = {name: value for name, value in state.stats.to_dict().items() if isinstance(value, int)}


class Recorder(Follower):
    """One greedy generation of one prompt.

    prompt: text or token ids. max_tokens: the most new tokens. ignore_eos: go on past the model's stop tokens.
    progress: called with the number of prompt tokens just processed.

    Raises InputError, CapacityError or PlanError before any work is done, as `LLM.generate` does.
    """

    def __init__(
        self,
        llm: LLM,
        prompt: str | Sequence[int],
        *,
        plan: str | Plan | None = None,
        max_tokens: int = 32,
        ignore_eos: bool = False,
        progress: Progress = lambda tokens: None,
    ) -> None:
        [request] = llm.check(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos), plan=plan)
        super().__init__(llm, request)
        self._progress = progress

    def steps(self) -> Iterator[Step]:
        """Run, and yield every step when it is done: the prefill, then decode steps. To be called once."""
        shown = 0
        with closing(self._llm.engine().follow(self.request, self._progress)) as outputs:
            for output in outputs:
                self.follow(output)
                yield from self._steps[shown:]
                shown = len(self._steps)


class _Watched:
    """What was seen of one layer in one step: tensors of positions, and the count of units read."""

    def __init__(self) -> None:
        self.computed: list[Tensor] = []
        self.revived: list[Tensor] = []
        self.read: list[Tensor] = []
        self.units = 0


def token_texts(tokenizer: PreTrainedTokenizerBase | None, ids: list[int]) -> list[str]:
    """Per token its text, special tokens by their name; joined they are the whole text.

    A token that is only a part of a character adds nothing, the one that completes the character adds it. Without a
    tokenizer the ids stand for themselves.
    """
    if tokenizer is None:
        return [f"[{token}]" for token in ids]
    text, spans = spell_each(tokenizer, ids)
    return [
        "" if span == following else text[slice(*span)]
        for span, following in zip(spans, [*spans[1:], None], strict=True)
    ]


def _seen(view: View, rows: Tensor) -> Tensor:
    """Positions of the units that some row sees, a copy: eviction may move the cache's own, and their order with them.

    rows: [rows] positions.
    """
    if view.past is not None and view.window is None:
        return view.positions.clone()
    # Copies hold units that have left the cache or the window since.
    seen = visible(rows, view.order, view.window).any(1)  # [1 or kv_heads, units]
    return view.positions.expand_as(seen)[seen]


def _snapshot(state: State, kv_heads: int) -> Snapshot:
    """What every KV head holds now; where none differs from the others, a layer has its positions once."""
    kept = []
    for cache in state.caches:
        each = [runs_of([positions]) for positions in _of_heads(cache)]
        kept.append(tuple(each * kv_heads if len(each) == 1 else each))
    return Snapshot(known=state.position, kept=tuple(kept))


def _of_heads(cache: LayerCache) -> list[Tensor]:
    """Positions of what every KV head of a layer holds; where none can differ from the others, once."""
    positions = cache.live_positions()
    return [row[row != NOBODY] for row in (positions if positions.dim() == 2 else positions[None])]


def record(
    llm: LLM, prompt: str | Sequence[int], *, plan: str | Plan | None = None, max_tokens: int = 32,
    ignore_eos: bool = False, progress: Progress = lambda tokens: None,
) -> Trace:  # fmt: skip
    """The whole trace of one greedy generation; see `Recorder`. plan: None is the model's own."""
    recorder = Recorder(llm, prompt, plan=plan, max_tokens=max_tokens, ignore_eos=ignore_eos, progress=progress)
    for _ in recorder.steps():
        pass
    return recorder.trace()
