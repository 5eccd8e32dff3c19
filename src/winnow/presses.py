"""Plans from kvpress's presses: `SnapKVPress(0.75)` for so many tokens -> the plan that keeps as many by its scores.

A press removes a share of the prompt once it has been computed whole, its question included; a plan's budget is a
count, and says when units go: here at the end of the prompt, chunk=None and local=0. Names, defaults and the rounding
of shares are those of kvpress 0.5.5. docs/presses.md has the whole table.
"""

import ast
import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from winnow.errors import PlanError
from winnow.plan import Plan, policy_named

SHARE, INNER = "compression_ratio", "press"


@dataclass(frozen=True)
class Press:
    """One of kvpress's presses that a plan can say.

    policy: of the same scores; None: it wraps another press. takes: its parameters behind the first, in their order,
    with their defaults. named: the policy's parameters that say the same as some of these; the others have a plan at
    their defaults alone. sets: what it says besides. note: where the two differ. unweighed: a parameter that comes to
    nothing where a press around it weighs scores by what units add to the output.
    """

    policy: str | None
    takes: Mapping[str, Any] = field(default_factory=dict)
    named: Mapping[str, str] = field(default_factory=dict)
    sets: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    unweighed: str = ""

    @property
    def first(self) -> str:
        """The name of its first parameter."""
        return INNER if self.policy is None else SHARE


SNAPKV, MEAN = {"window_size": 64, "kernel_size": 5}, {"pooling": "avg"}
TO_SNAPKV = {"window": "window_size", "kernel": "kernel_size"}
PRESSES: dict[str, Press] = {
    "KnormPress": Press("knorm"),
    "SnapKVPress": Press("snapkv", SNAPKV, TO_SNAPKV, MEAN),
    "PyramidKVPress": Press(
        "snapkv",
        {**SNAPKV, "beta": 20},
        TO_SNAPKV,
        {**MEAN, "by_layer": "pyramid"},
        note="PyramidKVPress counts the window within the slope, and where the last layer would keep fewer than "
        "window_size units it keeps alike in all layers; here every layer keeps the window, and a pyramid beside it",
    ),
    "TOVAPress": Press(
        "tova",
        sets={"decode_chunk": None},
        note="TOVAPress always keeps the last token, tova only for what it pays itself",
    ),
    "KeyDiffPress": Press("keydiff"),
    "LagKVPress": Press(
        "lagkv",
        {"n_sink": 4, "lag_size": 128, "cross_scoring": False},
        {"sink": "n_sink", "lag": "lag_size"},
        note="of units of equal ranks lagkv keeps the newest, LagKVPress any",
    ),
    "ExpectedAttentionPress": Press(
        "expected_attention",
        {"n_future_positions": 512, "n_sink": 4, "use_covariance": True, "use_vnorm": True, "epsilon": 0.0},
        {"ahead": "n_future_positions", "sink": "n_sink"},
        unweighed="use_vnorm",
    ),
    "KVzipPress": Press(
        "kvzip",
        {"layerwise": False, "n_sink": 4, "kvzip_plus_normalization": False, "chunk_size": 2048},
        {"sink": "n_sink", "chunk": "chunk_size", "normalised": "kvzip_plus_normalization"},
        {"local": 1},
        note="KVzipPress does not score what a chat template puts before a message, and removes it but for the sinks; "
        "here it is scored like the rest; the last token comes after the choice here, and the prompt is asked to be "
        "repeated as a user's turn where it has one",
    ),
    "AdaKVPress": Press(
        None,
        {"alpha_safeguard": 0.2},
        sets={"by_head": "adaptive"},
        note="AdaKVPress masks what it removes and holds it all the same, here its memory is given back; its sure "
        "fifth has the window in it, here it is beside it",
    ),
    "CriticalKVPress": Press(
        None,
        {"epsilon": 1e-4, "first_stage_ratio": 0.5},
        sets={"weigh": "output"},
        note="of ExpectedAttentionPress a plan takes the scores with use_vnorm=False, as kvpress advises; "
        "tova weighs by the mean over all heads, which keep the same",
    ),
    "CriticalAdaKVPress": Press(
        None,
        {"alpha_safeguard": 0.2, "epsilon": 1e-4, "first_stage_ratio": 0.5},
        sets={"by_head": "adaptive", "weigh": "output"},
        note="what differs for AdaKVPress and for CriticalKVPress differs here",
    ),
    "KeyRerotationPress": Press(None, sets={"positions": "compact"}),
    "BlockPress": Press(
        None,
        {"block_size": 128},
        {"chunk": "block_size"},
        note="BlockPress computes the whole prompt first and begins with as many tokens as it keeps; here units go "
        "while the prompt is computed, after every chunk, so that later rows do not see them",
    ),
}
# Why there is no plan for the others.
WITHOUT: dict[str, str] = {
    "RandomPress": "it removes units at random; random_heads is a control with scores that are functions of tokens",
    "StreamingLLMPress": "it evicts once, after full attention over the prompt; streaming(sink=..., recent=...) is the "
    "method itself, under which no row sees more than the sinks and the window",
    "ObservedAttentionPress": "it averages attention over the rows that see a unit; h2o adds up, and keeps the newest",
    "QFilterPress": "its scores need filters made of each model's queries beforehand",
    "ExpectedAttentionStatsPress": "its scores need statistics made of each model's queries beforehand; "
    "ExpectedAttentionPress takes those of the prompt",
    "KVgradPress": "it reads the prompt a second time, and its gradients, to score it",
    "RestoreKVPress": "it needs a trained adapter, and reads the prompt a second time",
    "FastKVzipPress": "it needs trained gates; kvzap has trained heads of its own",
    "KVzapPress": "it needs a trained model beside it; kvzap has the rule that it is used with, and heads of its own",
    "DMSPress": "it has a threshold for the scores of any press; kvzap has one for those of its heads",
    "KVComposePress": "no policy has its scores",
    "MergingPress": "it merges the units that it removes into others",
    "CAMPress": "it merges the values that it removes into others",
    "CompactorPress": "no policy has its scores",
    "LeverageScorePress": "no policy has its scores",
    "NonCausalAttnPress": "no policy has its scores",
    "CURPress": "no policy has its scores",
    "CapPress": "no policy has its scores",
    "LUKVPress": "it needs budgets of heads that were learned beforehand",
    "ThinKPress": "it removes channels of keys, and units stay whole here; quantized makes them smaller",
    "SimLayerKVPress": "it keeps a window in some layers and all in others; a plan keeps alike in all layers",
    "DuoAttentionPress": "its gates are those of files for a few models, or made of random samples; duo(gates=..., "
    "share=...) is the method, with gates that winnow train duo makes",
    "FinchPress": "its window is the question, and where that begins has to be told",
    "ChunkPress": "it removes an equal share of every piece of the prompt; a budget is for all that is held",
    "ChunkKVPress": "it keeps and removes whole pieces of the prompt; policies choose units",
    "EntropyGatedChunkKVPress": "it keeps and removes whole pieces of the prompt; policies choose units",
    "PerLayerCompressionPress": "a share for every layer is not in a plan",
    "ComposedPress": "it removes units several times; a plan holds one keep policy",
    "DecodingPress": "it leaves the prompt whole and compresses what comes after it; give a policy decode_chunk=...",
    "CompressionRatioDecodingPress": "its cache grows with the text; a budget is a count",
    "PrefillDecodingPress": "it has two sizes, for the prompt and behind it; a policy with decode_chunk=... has one",
}


@dataclass(frozen=True)
class Translation:
    """press: as it was written; kept: units per KV head and layer that are left of `prompt` tokens, as the mean where
    heads or layers differ; notes: where the two differ."""

    press: str
    plan: Plan
    prompt: int
    kept: int
    notes: tuple[str, ...]


def translate(text: str, prompt: int) -> Translation:
    """The plan of a press's expression, `AdaKVPress(SnapKVPress(0.5))`, for a prompt of so many tokens.

    Nothing of it is evaluated. Raises PlanError where it is not one, and where there is no plan for it.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise PlanError(f"press {text!r} cannot be read; write it like 'SnapKVPress(0.75)'") from error
    if isinstance(node, ast.Name):
        node = ast.Call(node, [], [])
    policy, parameters, share, notes = _said(node)
    kept = max(1, int(prompt * (1 - share)))
    if share == 0:
        return Translation(text.strip(), Plan(), prompt, prompt, ())
    values = {"budget": kept, "chunk": None, "local": 0, **parameters}
    if missing := values.keys() - {each.name for each in fields(policy_named(policy))}:
        raise PlanError(f"there is no plan for {text.strip()}: {policy} has no {', '.join(sorted(missing))}")
    spelled = ", ".join(f"{name}={value!r}" for name, value in values.items())
    left = min(prompt, kept + values["local"])
    return Translation(text.strip(), Plan.parse(f"{policy}({spelled})"), prompt, left, notes)


def _said(node: ast.expr, weighed: bool = False) -> tuple[str, dict[str, Any], float, tuple[str, ...]]:
    """What a press comes to: a policy, its parameters but the budget, the share that goes, and notes. weighed: whether
    a press around it weighs its scores by what units add to the output."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise PlanError(f"{ast.unparse(node)!r} is not a press; write it like 'SnapKVPress(0.75)'")
    name, press = node.func.id, _known(node.func.id)
    values = _values(name, press, node)
    inner = values.pop(press.first, None)
    for key, default in press.takes.items():
        free = key in press.named.values() or (weighed and key == press.unweighed)
        if not free and values.get(key, default) != default:
            raise PlanError(
                f"{name}: there is a plan for {key}={default!r} alone, not for {values[key]!r}; leave it out"
            )
    told = {mine: values.get(its, press.takes[its]) for mine, its in press.named.items()} | dict(press.sets)
    note = (press.note,) if press.note else ()
    if press.policy is None:
        if inner is None:
            raise PlanError(f"{name} wraps a press; write it like '{name}(SnapKVPress(0.75))'")
        policy, parameters, share, notes = _said(inner, weighed or "weigh" in told)
        if both := sorted(parameters.keys() & told.keys()):
            raise PlanError(
                f"there is no plan for {name} around {ast.unparse(inner)}, which has a {' and a '.join(both)} "
                "of its own"
            )
        return policy, parameters | told, share, notes + note
    share = 0.0 if inner is None else inner
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        raise PlanError(f"{name}: {SHARE}={share!r} must be a share from 0 up to, but not, 1")
    return press.policy, told, share, note


def _values(name: str, press: Press, node: ast.Call) -> dict[str, Any]:
    """The parameters that are given, literals; the first one of a wrapper as it was parsed."""
    takes = [press.first, *press.takes]
    if len(node.args) > len(takes):
        raise PlanError(f"{name} takes {len(takes)} parameters ({', '.join(takes)}), not {len(node.args)}")
    pairs = [*zip(takes, node.args, strict=False), *((each.arg, each.value) for each in node.keywords)]
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key is None or key in values:
            raise PlanError(f"{name}: parameter {key or '**'} is given twice or unpacked; write each once")
        if key not in takes:
            raise PlanError(f"{name} has no parameter {key!r}{_nearest(key, takes)}; it takes {', '.join(takes)}")
        try:
            values[key] = value if key == INNER else ast.literal_eval(value)
        except (ValueError, TypeError) as error:
            raise PlanError(f"{name}: {key}={ast.unparse(value)} is not a literal value") from error
    return values


def _known(name: str) -> Press:
    if name in PRESSES:
        return PRESSES[name]
    if name in WITHOUT:
        raise PlanError(f"there is no plan for {name}: {WITHOUT[name]}; there are plans for {', '.join(PRESSES)}")
    raise PlanError(
        f"unknown press {name!r}{_nearest(name, [*PRESSES, *WITHOUT])}; there are plans for {', '.join(PRESSES)}"
    )


def _nearest(name: str, known: Collection[str]) -> str:
    lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    return f": did you mean {lower[close[0]]}?" if close else ""
