"""What every step of one generation did with every token in every layer, and its JSON form (docs/trace.md).

A trace says nothing about policies: any policy can be recorded, and whoever wants to show a run of something else can
write the JSON.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Literal

from winnow.errors import InputError
from winnow.inspector.runs import Runs, count
from winnow.inspector.sets import SetTable, read_sets

FORMAT = "winnow trace"
VERSION = 3
SETS = ("computed", "revived", "read", "held", "aside")
APART = ("entrances", "tokens", "stats", "steps", "snapshots")  # fields of a trace with a JSON form of their own


class State(IntEnum):
    """What one step did with one token in one layer. Where several hold, the highest counts."""

    ABSENT = 0  # no unit: never computed here, or evicted
    ASIDE = 1  # parked: its hidden state waits at the entrance of this layer
    HELD = 2  # its unit is in the cache, and this step did not read it
    REUSED = 3  # its unit was in the cache, and this step read it
    COMPUTED = 4  # computed in this step, for the first time at its turn
    REVIVED = 5  # computed in this step, after earlier steps had skipped it


@dataclass(frozen=True)
class Token:
    """id: in the vocabulary; text: what it adds to the text, empty where it is only a part of a character."""

    id: int
    text: str


@dataclass(frozen=True)
class LayerStep:
    """One layer in one step; positions of tokens, as runs.

    computed: rows that went through the layer. revived: those of them that earlier steps had skipped. read: units that
    a decode step attended to, its own rows' included; prefill steps leave it empty, since all they read they computed.
    held, aside: units in the cache, and hidden states that wait at the layer's entrance, after the step. With heads
    that differ, read and held are what at least one head did; units_read and units_held count over KV heads. What a
    copy still holds of units that have left the cache is counted in units_read, as in `Stats`, and is not in read.
    """

    computed: Runs
    revived: Runs
    read: Runs
    held: Runs
    aside: Runs
    units_read: int
    units_held: int


@dataclass(frozen=True)
class Step:
    """One pass over the layers; the prefill is one, however many chunks it had.

    fed: [start, stop) positions of the tokens that were fed. produced: position of the token chosen from its logits.
    rows_full, units_full: rows that full attention would have computed, and units it would have read.
    slow: whether a decode step looked everywhere, where the plan has steps that do and steps that do not; else None.
    """

    phase: Literal["prefill", "decode"]
    fed: tuple[int, int]
    produced: int
    rows_full: int
    units_full: int
    slow: bool | None
    layers: tuple[LayerStep, ...]

    @property
    def rows(self) -> int:
        """Rows computed, summed over layers."""
        return sum(count(layer.computed) for layer in self.layers)

    @property
    def revived_rows(self) -> int:
        """Rows computed late, summed over layers."""
        return sum(count(layer.revived) for layer in self.layers)

    @property
    def units_read(self) -> int:
        """Units read, summed over layers and KV heads; 0 for prefill."""
        return sum(layer.units_read for layer in self.layers)

    @property
    def aside(self) -> int:
        """Tokens parked after the step, summed over layers."""
        return sum(count(layer.aside) for layer in self.layers)

    def states(self, layer: int) -> list[State]:
        """What this step did with every token known to it in `layer`: [fed stop]."""
        known, at = self.fed[1], self.layers[layer]
        states = [State.ABSENT] * known
        for state, runs in (
            (State.ASIDE, at.aside),
            (State.HELD, at.held),
            (State.REUSED, at.read),
            (State.COMPUTED, at.computed),
            (State.REVIVED, at.revived),
        ):
            for start, stop in runs:
                states[start:stop] = [state] * (stop - start)
        return states


@dataclass(frozen=True)
class Snapshot:
    """What every KV head held at one moment: right after the caches were compressed, or when the prompt was there.

    known: tokens so far. kept: per layer, per KV head, the positions of its units.
    """

    known: int
    kept: tuple[tuple[Runs, ...], ...]


@dataclass(frozen=True)
class Trace:
    """One generation.

    model, plan: names. layers, kv_heads: of the model. entrances: layers where the compute policy chooses who goes on.
    prompt: prompt tokens that the model saw; omitted: those that the plan removed before. tokens: the prompt's, then
    the new ones. finish_reason: "stop", "length", or None where the run was interrupted. stats: the counts of
    `winnow.Stats`. snapshots: in the order in which they were taken, that of `known`.
    """

    model: str
    plan: str
    layers: int
    kv_heads: int
    entrances: tuple[int, ...]
    prompt: int
    omitted: int
    tokens: tuple[Token, ...]
    finish_reason: str | None
    stats: Mapping[str, int]
    steps: tuple[Step, ...]
    snapshots: tuple[Snapshot, ...]

    @property
    def text(self) -> str:
        """The text of the new tokens, special ones included."""
        return "".join(token.text for token in self.tokens[self.prompt :])

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        table = SetTable()
        steps = [_step_to_dict(step, table) for step in self.steps]
        snapshots = [_snapshot_to_dict(snapshot, table) for snapshot in self.snapshots]
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in APART}
        return {
            "format": FORMAT,
            "version": VERSION,
            **plain,
            "entrances": list(self.entrances),
            "tokens": [{"id": token.id, "text": token.text} for token in self.tokens],
            "stats": dict(self.stats),
            "sets": table.written,
            "steps": steps,
            "snapshots": snapshots,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "Trace":
        """The trace that `to_dict` wrote, or that versions 1 and 2 did; else raises InputError."""
        if not isinstance(document, Mapping) or document.get("format") != FORMAT:
            raise InputError(f'this is not a trace: its "format" is not {FORMAT!r}')
        version = document.get("version")
        if not isinstance(version, int) or not 1 <= version <= VERSION:
            raise InputError(f"the trace has version {version!r}; this Winnow reads 1 to {VERSION}; record it anew")
        try:
            return cls._read(_renewed(document, version))
        except KeyError as error:
            raise InputError(f"the trace is damaged: {error} is missing") from error
        except (TypeError, ValueError, IndexError) as error:
            raise InputError(f"the trace is damaged: {error}") from error

    @classmethod
    def _read(cls, document: Mapping[str, Any]) -> "Trace":
        sets = read_sets(document["sets"])
        plain = {f.name: document[f.name] for f in fields(cls) if f.name not in APART}
        trace = cls(
            **plain,
            entrances=tuple(document["entrances"]),
            tokens=tuple(Token(token["id"], token["text"]) for token in document["tokens"]),
            stats=document["stats"],
            steps=tuple(_step_from_dict(step, sets) for step in document["steps"]),
            snapshots=tuple(_snapshot_from_dict(snapshot, sets) for snapshot in document["snapshots"]),
        )
        _check(trace)
        return trace


def _renewed(document: Mapping[str, Any], version: int) -> Mapping[str, Any]:
    """What an older version had not: snapshots before 2, slow steps before 3."""
    if version < 2:
        document = {**document, "snapshots": []}
    if version < 3:
        document = {**document, "steps": [{**step, "slow": None} for step in document["steps"]]}
    return document


def _check(trace: Trace) -> None:
    """Raise ValueError where the parts of a trace do not fit each other."""
    tokens = len(trace.tokens)
    for number, step in enumerate(trace.steps):
        end = _end(getattr(at, name) for at in step.layers for name in SETS)
        if len(step.layers) != trace.layers or end > step.fed[1] or step.produced >= tokens:
            raise ValueError(f"step {number} does not fit {trace.layers} layers and {tokens} tokens")
        if step.slow is not None and (step.phase == "prefill" or not isinstance(step.slow, bool)):
            raise ValueError(f"step {number} is a {step.phase} step and says slow: {step.slow!r}")
    before = 0
    for number, snapshot in enumerate(trace.snapshots):
        end = _end(runs for heads in snapshot.kept for runs in heads)
        if [len(heads) for heads in snapshot.kept] != [trace.kv_heads] * trace.layers:
            raise ValueError(f"snapshot {number} does not fit {trace.layers} layers of {trace.kv_heads} KV heads")
        if not max(end, before + 1) <= snapshot.known <= tokens:
            raise ValueError(f"snapshot {number} of {snapshot.known} known tokens holds one of {end}, after {before}")
        before = snapshot.known


def _end(sets: Iterable[Runs]) -> int:
    """One more than the last position in any of the sets."""
    return max((runs[-1][1] for runs in sets if runs), default=0)


def _step_to_dict(step: Step, table: SetTable) -> dict[str, Any]:
    """The JSON form; a layer's sets are mostly like those of the step before."""
    layers = []
    for number, layer in enumerate(step.layers):
        sets = {name: table.add(getattr(layer, name), (number, name), (number, "held")) for name in SETS}
        layers.append({**sets, "units_read": layer.units_read, "units_held": layer.units_held})
    plain = {f.name: getattr(step, f.name) for f in fields(step)}
    return {**plain, "fed": list(step.fed), "layers": layers}


def _snapshot_to_dict(snapshot: Snapshot, table: SetTable) -> dict[str, Any]:
    """The JSON form; what a head keeps is mostly like what it kept before."""
    kept = [
        [table.add(runs, ("kept", layer, head)) for head, runs in enumerate(heads)]
        for layer, heads in enumerate(snapshot.kept)
    ]
    return {"known": snapshot.known, "kept": kept}


def _step_from_dict(step: Mapping[str, Any], sets: list[Runs]) -> Step:
    layers = (
        LayerStep(
            **{name: sets[layer[name]] for name in SETS},
            units_read=layer["units_read"],
            units_held=layer["units_held"],
        )
        for layer in step["layers"]
    )
    first, stop = step["fed"]
    plain = {name: step[name] for name in ("phase", "produced", "rows_full", "units_full", "slow")}
    return Step(**plain, fed=(first, stop), layers=tuple(layers))


def _snapshot_from_dict(snapshot: Mapping[str, Any], sets: list[Runs]) -> Snapshot:
    kept = tuple(tuple(sets[index] for index in heads) for heads in snapshot["kept"])
    return Snapshot(known=snapshot["known"], kept=kept)
