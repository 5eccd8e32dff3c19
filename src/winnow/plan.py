"""A plan: one policy for each of prompt, compute, keep, prefill, read and store.

Plan.parse("streaming(sink=4, recent=1024)")      text, Python-call syntax, joined by +
Plan(keep=Streaming(sink=4, recent=1024))         the same
Plan.parse("full")                                the identity: full attention
"""

import ast
import dataclasses
import difflib
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from winnow.cache.pattern import ALL, HELD
from winnow.errors import CapacityError, PlanError
from winnow.policies.base import VERBS, LayerContext, ModelShape, Policy, Services, StorePolicy
from winnow.policies.compute.base import ComputePolicy, Deep
from winnow.policies.compute.full import Full
from winnow.policies.compute.gates import Gates
from winnow.policies.keep.base import KeepPolicy
from winnow.policies.keep.everything import Everything
from winnow.policies.prefill.base import PrefillPolicy
from winnow.policies.prefill.causal import Causal
from winnow.policies.prompt.base import PromptPolicy
from winnow.policies.prompt.whole import Whole
from winnow.policies.read.base import ReadPolicy
from winnow.policies.read.dense import Dense
from winnow.policies.registry import POLICIES
from winnow.policies.store.plain import Plain

SHOWN = 120  # characters of what was written that a message repeats
FAR = 2**40  # tokens of a prompt that only plans with a bounded count of positions take


@dataclasses.dataclass(frozen=True)
class Plan:
    """One policy per verb; verbs that are not named do what full attention does.

    Raises PlanError where a policy answers another verb than the one it is given for.
    """

    prompt: PromptPolicy = dataclasses.field(default_factory=Whole)
    compute: ComputePolicy = dataclasses.field(default_factory=Full)
    keep: KeepPolicy = dataclasses.field(default_factory=Everything)
    prefill: PrefillPolicy = dataclasses.field(default_factory=Causal)
    read: ReadPolicy = dataclasses.field(default_factory=Dense)
    store: StorePolicy = dataclasses.field(default_factory=Plain)
    # Parameters that the plan's text spelled out, per verb, so that str() gives the text back.
    written: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for verb, policy in self.policies.items():
            if not isinstance(policy, Policy) or policy.verb != verb:
                raise PlanError(f"{verb}={policy!r} is not a {verb} policy; known: {', '.join(known(verb))}")

    @property
    def policies(self) -> dict[str, Policy]:
        """The policies by verb."""
        return {verb: getattr(self, verb) for verb in VERBS}

    @property
    def shortcut(self) -> Policy | None:
        """The policy under which some token of a prompt does not go through all layers; None: every one does."""
        return next((policy for policy in (self.prompt, self.compute) if not policy.identity), None)

    def prefix_stable(self, n: int, deep: Deep) -> int:
        """Of the first `n` tokens of a sequence, how many a longer prompt may go on from, as all policies say."""
        while (stable := min(policy.prefix_stable(n, deep) for policy in self.policies.values())) < n:
            n = stable  # some agree to certain numbers only
        return n

    def next_boundary(self, known: int, prompt: int) -> int | None:
        """After how many tokens, more than `known`, units are next evicted by score or held in another form."""
        ends = (self.keep.next_eviction(known, prompt), self.store.next_change(known, prompt))
        return min((end for end in ends if end is not None), default=None)

    def gates(self, shape: ModelShape) -> Gates:
        """Where tokens may stop on the way up."""
        return Gates(self.compute.gates(shape), shape.layers)

    @property
    def is_full(self) -> bool:
        """Whether this plan is full attention."""
        return all(policy.identity for policy in self.policies.values())

    @property
    def holds_all(self) -> bool:
        """Whether every unit stays as it came and every step reads it: full attention, wherever units lie."""
        return self.keeps_all and self.read.identity

    @property
    def keeps_all(self) -> bool:
        """Whether every token has a unit in every layer that stays as it came, whatever steps read."""
        others = (self.prompt, self.compute, self.keep)
        as_it_came = self.store.next_change(0, 1) is None and self.read.reach is None
        return as_it_came and all(policy.identity for policy in others)

    @classmethod
    def parse(cls, text: "str | Plan") -> "Plan":
        """The plan that `text` describes; a Plan is returned as it is.

        Raises PlanError for unknown policies or parameters, values that are not literals, and two policies for a verb.
        """
        if isinstance(text, Plan):
            return text
        if not isinstance(text, str):
            raise PlanError(f"a plan is a string or a Plan, not {text!r}")
        chosen: dict[str, Policy] = {}
        written: dict[str, tuple[str, ...]] = {}
        for name, values in _calls(text):
            policy = _make(name, values)
            if policy.verb in chosen:
                first = chosen[policy.verb].name
                what = {"prompt": "show of a prompt", "prefill": "read in prefill"}.get(policy.verb, policy.verb)
                raise PlanError(f"{first} and {name} both say what to {what}; a plan holds one of them")
            chosen[policy.verb] = policy
            written[policy.verb] = tuple(values)
        return cls(**chosen, written=written)  # type: ignore[arg-type]

    def __str__(self) -> str:
        parts = [_spell(p, self.written.get(verb, ())) for verb, p in self.policies.items() if not p.identity]
        return " + ".join(parts) or "full"

    def validate(self, shape: ModelShape) -> None:
        """Raise PlanError where a policy cannot act on a model of `shape`, before any work is done."""
        for policy in self.policies.values():
            policy.validate(shape)
        gates = self.gates(shape)
        self._validate_sums(gates)
        if gates.each:
            self._validate_keep(gates)
        self._validate_prefill(shape)
        self._validate_ragged()
        self._validate_read(gates)
        if self.store.next_change(0, prompt=1) is not None and self.keep.next_eviction(known=1, prompt=1) is not None:
            raise PlanError(
                f"{self.keep.name} evicts units by their scores for as long as the text goes on, and {self.store.name} "
                f"makes codes of units once none of them will be evicted any more; use {self.keep.name} with "
                "decode_chunk=None, or one of them"
            )

    def prepare(self, services: Services, ids: list[int] | None = None, new: int = 1) -> None:
        """Raise whatever keeps this plan from running, before any work: the one place that refuses.

        ids: of a prompt, and new: the most tokens after it, the last of which is never fed; None: any prompt.
        Raises PlanError, and InputError, CapacityError or ModelError where the prompt is none for it, is too long, or a
        policy lacks a tokenizer, heads or another model.
        """
        self.validate(services.shape)
        for policy in (self.prompt, self.keep, self.prefill, self.read, self.store):
            policy.prepare(services, ids)
        if ids is not None:
            self._check_length(services.shape, len(ids), new)
        self.compute.prepare(services, ids)

    def _check_length(self, shape: ModelShape, prompt: int, new: int) -> None:
        limit = shape.max_positions
        if (used := self.rope_positions(shape, prompt, new)) is not None and used <= limit:
            return
        if prompt > limit:
            raise CapacityError(
                f"the prompt has {prompt} tokens, more than the model's {limit} positions; shorten it, or from "
                "Python and the command line say with truncate which part to leave out: head, middle or tail; or take "
                "a plan under which a text may be longer, such as locret or streaming: winnow fit shows which"
            )
        if prompt + new > limit + 1:
            raise CapacityError(
                f"{prompt} prompt tokens and max_tokens={new} exceed the model's {limit} positions; "
                f"use max_tokens of at most {limit + 1 - prompt}"
            )

    def room(self, shape: ModelShape, new: int) -> int | None:
        """The most tokens of a prompt that leave positions for `new` tokens; None: there is no limit."""
        used = self.rope_positions(shape, FAR, new)
        if used is not None and used <= shape.max_positions:
            return None
        most = shape.max_positions + 1 - new
        if not self.keep.repeated(most):
            return most
        return bisect_right(range(1, most + 1), shape.max_positions, key=self.keep.positions_read)

    def rope_positions(self, shape: ModelShape, prompt: int, new: int) -> int | None:
        """How many rope positions a prompt and `new` tokens use at most, where that may be fewer; else None.

        Where places among the kept units are rope positions, those above the layer at which tokens stop are not.
        """
        if self.read.reach is not None:
            return self.read.reach
        held, gates = any(self.keep.pattern(layer).held for layer in shape.contexts), self.gates(shape)
        if not self.keep.compact or ((held or gates.self_only) and gates.each):
            return None
        # In windows only distances count; of the other layers the first has most.
        layer = next((each for each in shape.contexts if each.window is None), LayerContext(0, shape.layers, None))
        if self.keep.ragged:
            return self.keep.longest(prompt, new, layer, shape.kv_heads)
        pattern = self.keep.pattern(layer)
        return self.keep.bound(prompt, new, layer) if pattern.held else pattern.bound(0, None)

    def step_rows(self, chunk: int) -> int:
        """The most rows of a prompt that go through a layer together, where steps are meant to hold `chunk`."""
        return max(chunk, self.whole)

    @property
    def whole(self) -> int:
        """So many rows of a prompt, or multiples of it, go through the layers together."""
        return max(self.prefill.whole, self.read.whole)

    def bound(self, gates: Gates, prompt: int, new: int, chunk: int, layer: LayerContext) -> int | None:
        """The most units per KV head that a layer which all tokens reach ever holds; None: one for every token.

        gates: the plan's; prompt, new: tokens, `chunk` of them in a step.
        """
        pattern = self.keep.pattern(layer)
        if pattern.held:
            return self.keep.bound(prompt, new, layer)
        # A token that is revived may need units that have left its window. What is read once more leaves none.
        stay = max(chunk, self.keep.repeated(prompt) + self.store.stays(prompt))
        return pattern.bound(stay, None if gates.revives else layer.window)

    def _validate_sums(self, gates: Gates) -> None:
        """Raise PlanError where sums of units stay and another policy looks for those of single tokens."""
        if not self.keep.keeps_sums:
            return
        name = self.keep.name
        if gates.each:
            raise PlanError(
                f"{name} makes sums of the units of all tokens, at the same times in all layers, and under "
                f"{self.compute.name} layers hold those of some; use one of them"
            )
        if not self.read.identity:
            raise PlanError(
                f"{self.read.name} reads the newest units in any case, and under {name} sums of older ones stand "
                "behind them; use one of them"
            )

    def _validate_keep(self, gates: Gates) -> None:
        """Raise PlanError where the keep policy lacks something in layers that not all tokens reach."""
        keep, compute, reason = self.keep, self.compute, None
        source = None if keep.score is None else keep.score.source
        if source == "repeats":
            reason = f"{keep.name} reads a prompt once more in all layers, and under {compute.name} most of it stops"
        elif source == "logits":
            reason = (
                f"{keep.name} scores tokens by what comes out of the last layer, and under {compute.name} most stop"
            )
        elif keep.score is not None and keep.score.of_rows is not None and gates.fills:
            reason = (
                f"{keep.name} scores units by the {keep.score.of_rows} of rows, and {compute.name} makes units without "
                "rows"
            )
        elif gates.ranks and not keep.identity and source not in ("kv", "units") and not self._votes_at_the_end(gates):
            reason = (
                f"{compute.name} ranks the tokens of a prompt at its end, and {keep.name} drops units before that "
                "without knowing which tokens will go on"
            )
        elif gates.forgets and keep.per_head:
            reason = (
                f"{compute.name} evicts tokens from the layers below, where under {keep.name} KV heads hold different "
                "ones"
            )
        if reason is not None:
            voters = keep.score.voters if keep.score is not None and gates.ranks and gates.newest > 1 else None
            once = f"{keep.name} with chunk=None, local=0 and votes of at most the last {gates.newest} rows, or "
            raise PlanError(f"{reason}; use {once if voters else ''}one of them")

    def _votes_at_the_end(self, gates: Gates) -> bool:
        """Whether units are evicted when the prompt is complete and never else, by the votes of rows in all layers."""
        score, keep = self.keep.score, self.keep
        known = score is not None and score.voters is not None and score.voters <= gates.newest
        return known and keep.next_eviction(0, FAR) == FAR and keep.next_eviction(1, 1) is None

    def _validate_prefill(self, shape: ModelShape) -> None:
        """Raise PlanError where it is fixed what rows of a prompt see."""
        if not self.prefill.identity and any(self.keep.pattern(each) not in (ALL, HELD) for each in shape.contexts):
            raise PlanError(
                f"under {self.keep.name} rows of a prompt see the first and the recent tokens only, and "
                f"{self.prefill.name} chooses among all that is kept; use one of them"
            )

    def _validate_ragged(self) -> None:
        """Raise PlanError where KV heads keep different numbers of units and another policy takes as many of each."""
        if not self.keep.ragged:
            return
        same = "reads as many units of every KV head"
        shares = any(field.name == "by_head" for field in dataclasses.fields(self.keep))
        keeps = f"with by_head='adaptive' {self.keep.name}" if shares else self.keep.name
        way = "by_head='uniform', or one of the two" if shares else "one of the two"
        for other, does in ((self.prefill, same), (self.read, same), (self.store, "holds as many")):
            if not other.identity:
                raise PlanError(f"{other.name} {does}, and {keeps} keeps different numbers; use {way}")

    def _validate_read(self, gates: Gates) -> None:
        """Raise PlanError where the read policy cannot act under the others."""
        read, keep, compute = self.read, self.keep, self.compute
        if read.identity:
            return
        self._validate_reach(gates)
        score = keep.score
        if score is not None and score.source == "attention" and keep.next_eviction(known=1, prompt=1) is not None:
            raise PlanError(
                f"{keep.name} scores units by the attention of every new token, and {read.name} reads few of them; use "
                f"{keep.name} with decode_chunk=None, or one of them"
            )
        if gates.revives and keep.per_head:
            raise PlanError(
                f"a step of {compute.name} reads what it has chosen, under {keep.name} that differs from KV head to KV "
                f"head, and {read.name} selects from what all of them read; use two of the three"
            )
        if gates.revives and not read.takes_revivals:
            raise PlanError(
                f"{compute.name} ranks tokens by full attention, and {_spell(read, ())} has no steps that read all "
                f"units in all layers and select at once; {read.revivals_need or 'use one of them'}"
            )
        if read.by_rows and gates.each:
            raise PlanError(
                f"{read.name} knows a unit of a layer by the row that entered it, and under {compute.name} not all "
                "tokens enter all layers; use one of them"
            )
        if not read.takes_gaps and (gates.each or keep.per_head):
            other = keep if keep.per_head else compute
            raise PlanError(
                f"{read.name} reads in a layer what another one has chosen, and with {other.name} layers hold "
                "different tokens; use one of them"
            )

    def _validate_reach(self, gates: Gates) -> None:
        """Raise PlanError where units are not all held as a policy needs them that turns their keys back."""
        if self.read.reach is None:
            return
        reason = None
        if gates.each:
            reason = f"under {self.compute.name} layers lack some of it"
        elif not self.keep.identity:
            reason = f"{self.keep.name} does not keep all of it"
        elif not self.prefill.identity:
            reason = f"{self.prefill.name} chooses by itself what rows of a prompt read"
        elif self.store.next_change(known=0, prompt=1) is not None:
            reason = f"{self.store.name} makes codes of keys as they came"
        if reason is not None:
            raise PlanError(
                f"{self.read.name} turns the keys back of all that has left its window, and reads it in blocks, in a "
                f"prompt too, and {reason}; use one of them"
            )


def known(verb: str | None = None) -> list[str]:
    """Names of the registered policies, of one verb or all."""
    return [name for name, policy in POLICIES.items() if verb in (None, policy.verb)]


def _calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    """`a(x=1) + b` -> [("a", {"x": 1}), ("b", {})]."""
    try:
        return _terms(ast.parse(text.strip(), mode="eval").body, text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise PlanError(
            f"plan {_short(text)!r} cannot be read; write it like 'streaming(sink=4, recent=1024)'"
        ) from error


def _terms(node: ast.expr, text: str) -> list[tuple[str, dict[str, Any]]]:
    terms: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        terms.append(node.right)
        node = node.left
    terms.append(node)
    return [_call(term, text) for term in reversed(terms)]


def _call(node: ast.expr, text: str) -> tuple[str, dict[str, Any]]:
    if isinstance(node, ast.Name):
        return node.id, {}
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise PlanError(f"plan {_short(text)!r}: {_short(ast.unparse(node))!r} is not a policy; join policies with +")
    name = node.func.id
    fields = [field.name for field in dataclasses.fields(policy_named(name))]
    if len(node.args) > len(fields):
        raise PlanError(f"{name} takes {len(fields)} parameters ({', '.join(fields)}), not {len(node.args)}")
    pairs = list(zip(fields, node.args, strict=False)) + [(keyword.arg, keyword.value) for keyword in node.keywords]
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key is None or key in values:
            raise PlanError(f"{name}: parameter {key or '**'} is given twice or unpacked; write each once")
        try:
            literal = ast.literal_eval(value)
        except (ValueError, TypeError) as error:
            raise PlanError(f"{name}: {key}={_short(ast.unparse(value))} is not a literal value") from error
        values[key] = tuple(literal) if isinstance(literal, list) else literal
    return name, values


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def policy_named(name: str) -> type[Policy]:
    """Raises PlanError, with the name that is closest, where there is no such policy."""
    if name not in POLICIES:
        close = difflib.get_close_matches(name.lower(), POLICIES, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise PlanError(f"unknown policy {_short(name)!r}: {hint}known policies: {', '.join(POLICIES)}")
    return POLICIES[name]


def _make(name: str, values: dict[str, Any]) -> Policy:
    policy = policy_named(name)
    fields = {field.name: field for field in dataclasses.fields(policy)}
    for key in values:
        if key not in fields:
            takes = f"it takes {', '.join(fields)}" if fields else "it takes none"
            raise PlanError(f"{name} has no parameter {_short(key)!r}; {takes}")
    for key, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and key not in values:
            raise PlanError(f"{name} needs {key}, for example {name}({key}=...)")
    return policy(**values)


def _spell(policy: Policy, written: tuple[str, ...]) -> str:
    fields = {field.name: field.default for field in dataclasses.fields(policy)}
    told = [key for key in written if key in fields]  # of another policy of the verb, where this one took its place
    changed = [key for key, default in fields.items() if getattr(policy, key) != default]
    values = {key: getattr(policy, key) for key in (*told, *(key for key in changed if key not in told))}
    spelled = [f"{key}={list(v) if isinstance(v, tuple) else v!r}" for key, v in values.items()]
    return f"{policy.name}({', '.join(spelled)})" if spelled else policy.name
