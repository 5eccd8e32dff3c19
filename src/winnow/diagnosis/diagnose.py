"""What each layer does with the prompt while a model answers under full attention, and where the prompt could stop."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from winnow.diagnosis.cutoff import Cutoff, Thresholds, recommend
from winnow.diagnosis.layerwise import PHASES, LayerObserver, Sums
from winnow.engine.request import Request
from winnow.errors import InputError
from winnow.evaluation.evaluate import Progress, cases, check_lengths, silent
from winnow.policies.compute.turns import decode_start
from winnow.runtime.llm import LLM
from winnow.runtime.observer import Observer
from winnow.sampling import SamplingParams
from winnow.tasks import Task

LEAST_PROMPT = 3  # tokens between position 0 and the decode phase: as many as it takes to turn once


@dataclass(frozen=True)
class LayerFigures:
    """One layer: means over query heads, decode steps and prompts, each row counting the same.

    prompt, bos, decode, itself: attention mass on the prompt (without position 0 and without the assistant header), on
    position 0, on earlier decode-phase tokens (the header's among them), and on the token itself; sinks: the rest, on
    learned sinks. entropy: of the attention within the prompt, nats; evenness: the same over ln(prompt tokens seen),
    0 (one token) .. 1 (all alike). selective: the mean of prompt mass x (1 - evenness). skipped: share of the rows with
    too little mass on the prompt, or one token of it in their window: no entropy, and nothing selected.
    entropy and evenness are None where all rows are.
    """

    layer: int
    prompt: float
    bos: float
    decode: float
    itself: float
    sinks: float
    entropy: float | None
    evenness: float | None
    selective: float
    skipped: float


@dataclass(frozen=True)
class Trajectory:
    """Mean curvature in degrees, and by how much it is below layer 0's; None where no three states differ in a row.

    layer: which layer these hidden states enter; the number of layers: those that leave the last one.
    """

    layer: int
    prompt: float | None
    decode: float | None
    prompt_straightening: float | None
    decode_straightening: float | None


@dataclass(frozen=True)
class Diagnosis:
    """Of `prompts` prompts and `steps` decode steps in all. layers: [layers]; trajectory: [layers + 1]."""

    prompts: int
    steps: int
    layers: tuple[LayerFigures, ...]
    trajectory: tuple[Trajectory, ...]
    cutoff: Cutoff

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "cutoff": self.cutoff.to_dict()}


def diagnose_tasks(
    llm: LLM,
    tasks: Sequence[Task],
    length: int,
    examples: int,
    *,
    max_tokens: int | None = None,
    ignore_eos: bool = False,
    seed: int = 0,
    progress: Progress = silent,
) -> Iterator[Sums]:
    """Answer seeded examples greedily under full attention; yields the sums of each, for `summarise`.

    max_tokens: the longest answer, instead of the task's own limit. progress: called with the number of prompt tokens
    just processed. Raises, before any work: InputError, CapacityError where something cannot be run.
    """
    check_lengths(llm, ["full"], [length])

    def made(count: int) -> Iterator[Request]:
        for case in cases(llm, tasks, [length], count, seed=seed):
            params = SamplingParams(max_tokens=max_tokens or case.example.max_tokens, ignore_eos=ignore_eos)
            yield _request(llm, case.ids, params)

    list(made(1))
    return _diagnosed(llm, made(examples), progress)


def diagnose_prompts(
    llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams, *, progress: Progress = silent
) -> Iterator[Sums]:
    """Like `diagnose_tasks`, on token ids of the caller's own. params: greedy."""
    return _diagnosed(llm, [_request(llm, ids, params) for ids in prompts], progress)


def summarise(sums: Sequence[Sums], thresholds: Thresholds | None = None) -> Diagnosis:
    """The figures of all prompts together, of which there is at least one.

    Raises InputError where the answers were too short to measure anything.
    """
    total = Sums(sums[0].layers)
    for each in sums:
        total.add(each)
    if not total.steps or not total.angles[PHASES.index("decode")].any():
        raise InputError(
            f"{total.prompts} answers with {total.steps} decode steps in all are too short to measure; take "
            "prompts with longer answers, or go on past the model's stop tokens (--ignore-eos)"
        )
    layers = tuple(_layer(total, layer) for layer in range(total.layers))
    trajectory = _trajectory(total)
    curvature = {phase: [getattr(point, phase) for point in trajectory[:-1]] for phase in PHASES}
    cutoff = recommend([each.prompt for each in layers], [each.selective for each in layers], curvature, thresholds)
    return Diagnosis(total.prompts, total.steps, layers, trajectory, cutoff)


def _request(llm: LLM, ids: Sequence[int], params: SamplingParams) -> Request:
    """Raises what `LLM.generate` would, and InputError where there is too little prompt or answer to look at."""
    [request] = llm.check([list(ids)], params, plan="full")
    if params.temperature != 0 or params.n != 1 or params.max_tokens < 2:
        raise InputError(
            f"temperature={params.temperature:g}, n={params.n}, max_tokens={params.max_tokens}: a diagnosis watches "
            "one greedy answer of at least 2 tokens; use temperature=0, n=1 and max_tokens=2 or more"
        )
    if (before := max(0, decode_start(ids, llm.tokenizer) - 1)) < LEAST_PROMPT:
        raise InputError(
            f"a prompt has {before} tokens between its first one and the answer's header; give at least {LEAST_PROMPT}"
        )
    return request


def _diagnosed(llm: LLM, requests: Iterable[Request], progress: Progress) -> Iterator[Sums]:
    for request in requests:
        observer = LayerObserver(llm.decoder.shape.layers, decode_start(request.ids, llm.tokenizer))
        observe(llm, request, observer, progress)
        yield observer.sums


def observe(llm: LLM, request: Request, observer: Observer, progress: Progress) -> None:
    """Answer a request while `observer` watches. progress: called with the number of prompt tokens just processed."""
    session = llm.session(plan=request.plan, max_tokens=request.params.max_tokens, observer=observer)
    session.feed(request.ids, progress=progress)
    session.generate(request)


def _layer(total: Sums, layer: int) -> LayerFigures:
    prompt, bos, decode, itself = (total.mass[layer] / total.rows).tolist()
    counted = int(total.counted[layer])
    return LayerFigures(
        layer=layer,
        prompt=prompt,
        bos=bos,
        decode=decode,
        itself=itself,
        sinks=max(0.0, 1 - prompt - bos - decode - itself),  # rounding
        entropy=float(total.entropy[layer]) / counted if counted else None,
        evenness=float(total.evenness[layer]) / counted if counted else None,
        selective=float(total.selective[layer]) / total.rows,
        skipped=1 - counted / total.rows,
    )


def _trajectory(total: Sums) -> tuple[Trajectory, ...]:
    mean = [
        [turned / count if count else None for turned, count in zip(turns, angles, strict=True)]
        for turns, angles in zip(total.turns.tolist(), total.angles.tolist(), strict=True)
    ]

    def straighter(line: list[float | None]) -> list[float | None]:
        return [None if line[0] is None or each is None else line[0] - each for each in line]

    points = zip(mean[0], mean[1], straighter(mean[0]), straighter(mean[1]), strict=True)
    return tuple(Trajectory(layer, *point) for layer, point in enumerate(points))
