"""What every step of one generation did with every token in every layer, and its JSON form (docs/trace.md).

A trace says nothing about policies: any policy can be recorded, and whoever wants to show a run of something else can
write the JSON.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, Literal

from winnow.errors import InputError
from winnow.inspector.runs import Runs, count, pack, unpack

FORMAT = "winnow trace"
VERSION = 1
SETS = ("computed", "revived", "read", "held", "aside")


class State(IntEnum):
    """What one step did with one token in one layer. Where several hold, the highest counts."""

    ABSENT = 0  # no unit: never computed here, or evicted
    ASIDE = 1  # its hidden state waits at the entrance of this layer
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
    that differ, read and held are what at least one head did; units_read and units_held count over KV heads.
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
    """

    phase: Literal["prefill", "decode"]
    fed: tuple[int, int]
    produced: int
    rows_full: int
    units_full: int
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
        """Hidden states set aside after the step."""
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
class Trace:
    """One generation.

    model, plan: names. layers, kv_heads: of the model. entrances: layers where the compute policy chooses who goes on.
    prompt: prompt tokens that the model saw; omitted: those that the plan removed before. tokens: the prompt's, then
    the new ones. finish_reason: "stop", "length", or None where the run was interrupted. stats: the counts of
    `winnow.Stats`.
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

    @property
    def text(self) -> str:
        """The text of the new tokens, special ones included."""
        return "".join(token.text for token in self.tokens[self.prompt :])

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; equal sets of positions are written once."""
        table = _Table()
        steps = [_step_to_dict(step, table) for step in self.steps]
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("tokens", "stats", "steps")}
        return {
            "format": FORMAT,
            "version": VERSION,
            **plain,
            "entrances": list(self.entrances),
            "tokens": [{"id": token.id, "text": token.text} for token in self.tokens],
            "stats": dict(self.stats),
            "sets": [pack(runs) for runs in table.index],
            "steps": steps,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "Trace":
        """The trace that `to_dict` wrote. Raises InputError where the document is no trace of this version."""
        if not isinstance(document, Mapping) or document.get("format") != FORMAT:
            raise InputError(f'this is not a trace: its "format" is not {FORMAT!r}')
        if document.get("version") != VERSION:
            raise InputError(f"the trace has version {document.get('version')!r}; this Winnow reads {VERSION}")
        try:
            return cls._read(document)
        except KeyError as error:
            raise InputError(f"the trace is damaged: {error} is missing") from error
        except (TypeError, ValueError, IndexError) as error:
            raise InputError(f"the trace is damaged: {error}") from error

    @classmethod
    def _read(cls, document: Mapping[str, Any]) -> "Trace":
        sets = [unpack(packed) for packed in document["sets"]]
        plain = {f.name: document[f.name] for f in fields(cls) if f.name not in ("tokens", "steps", "entrances")}
        trace = cls(
            **plain,
            entrances=tuple(document["entrances"]),
            tokens=tuple(Token(token["id"], token["text"]) for token in document["tokens"]),
            steps=tuple(_step_from_dict(step, sets) for step in document["steps"]),
        )
        for number, step in enumerate(trace.steps):
            last = max((runs[-1][1] for at in step.layers for name in SETS if (runs := getattr(at, name))), default=0)
            if len(step.layers) != trace.layers or last > step.fed[1] or step.produced >= len(trace.tokens):
                raise ValueError(f"step {number} does not fit {trace.layers} layers and {len(trace.tokens)} tokens")
        return trace


@dataclass
class _Table:
    """Every set of positions once; layers between two choices of a compute policy share theirs."""

    index: dict[Runs, int] = field(default_factory=dict)

    def add(self, runs: Runs) -> int:
        return self.index.setdefault(runs, len(self.index))


def _step_to_dict(step: Step, table: _Table) -> dict[str, Any]:
    layers = [
        {name: table.add(getattr(layer, name)) for name in SETS}
        | {"units_read": layer.units_read, "units_held": layer.units_held}
        for layer in step.layers
    ]
    plain = {f.name: getattr(step, f.name) for f in fields(step)}
    return {**plain, "fed": list(step.fed), "layers": layers}


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
    plain = {name: step[name] for name in ("phase", "produced", "rows_full", "units_full")}
    return Step(**plain, fed=(first, stop), layers=tuple(layers))
