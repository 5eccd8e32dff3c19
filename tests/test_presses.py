"""Plans from kvpress's presses."""

import itertools
import json
import re
import subprocess
from pathlib import Path

import pytest

from driving import prefill
from evict_reference import held
from models import small_model
from peer_engines import PYTHONS, needs_kvpress
from winnow import LLM, Plan
from winnow.engine.services import admit
from winnow.errors import PlanError
from winnow.presses import PRESSES, WITHOUT, translate

PROMPT = 1001
PAGE = Path(__file__).parents[1] / "docs" / "presses.md"


@pytest.mark.parametrize(
    ("press", "plan"),
    [
        ("SnapKVPress(0.75)", "snapkv(budget=250, chunk=None, local=0, window=64, kernel=5, pooling='avg')"),
        (
            "SnapKVPress(0.5, 32, kernel_size=7)",
            "snapkv(budget=500, chunk=None, local=0, window=32, kernel=7, pooling='avg')",
        ),
        (" KnormPress(compression_ratio=0.999) ", "knorm(budget=1, chunk=None, local=0)"),
        ("KnormPress(0.9999)", "knorm(budget=1, chunk=None, local=0)"),  # never less than one
        ("TOVAPress(0.3)", "tova(budget=700, chunk=None, local=0, decode_chunk=None)"),
        ("KeyDiffPress(0.1)", "keydiff(budget=900, chunk=None, local=0)"),
        ("LagKVPress(0.5, lag_size=64)", "lagkv(budget=500, chunk=None, local=0, sink=4, lag=64)"),
        (
            "ExpectedAttentionPress(0.5, n_sink=2, epsilon=0.0)",
            "expected_attention(budget=500, chunk=None, local=0, ahead=512, sink=2)",
        ),
        (
            "KeyRerotationPress(press=KeyDiffPress(0.5))",
            "keydiff(budget=500, chunk=None, local=0, positions='compact')",
        ),
        ("BlockPress(KeyDiffPress(0.5), block_size=64)", "keydiff(budget=500, chunk=64, local=0)"),
        (
            "BlockPress(KeyRerotationPress(KnormPress(0.5)))",
            "knorm(budget=500, chunk=128, local=0, positions='compact')",
        ),
        ("KVzipPress(0.75, n_sink=2)", "kvzip(budget=250, chunk=2048, sink=2, local=1)"),
        (
            "KVzipPress(0.75, kvzip_plus_normalization=True)",
            "kvzip(budget=250, chunk=2048, sink=4, local=1, normalised=True)",
        ),
        ("KnormPress", "full"),
        ("SnapKVPress()", "full"),
        ("BlockPress(KnormPress(0))", "full"),
        (
            "CriticalKVPress(KeyRerotationPress(ExpectedAttentionPress(0.5, use_vnorm=False)))",
            "expected_attention(budget=500, chunk=None, local=0, sink=4, positions='compact', weigh='output')",
        ),
    ],
)
def test_a_press_and_its_plan(press, plan):
    found = translate(press, PROMPT)
    assert found.plan == Plan.parse(plan)
    keep = found.plan.keep
    assert found.kept == (PROMPT if keep.identity else keep.budget + keep.local)
    assert found.press == press.strip()


@pytest.mark.parametrize(
    ("press", "field", "value"),
    [
        ("AdaKVPress(SnapKVPress(compression_ratio=0.5))", "by_head", "adaptive"),
        ("AdaKVPress(KeyDiffPress(0.5))", "by_head", "adaptive"),
        ("PyramidKVPress(0.5)", "by_layer", "pyramid"),
        ("CriticalKVPress(TOVAPress(0.5))", "weigh", "output"),
        ("CriticalKVPress(SnapKVPress(0.5), epsilon=1e-4)", "weigh", "output"),
        ("CriticalAdaKVPress(SnapKVPress(0.5))", "weigh", "output"),
        ("CriticalAdaKVPress(ExpectedAttentionPress(0.5))", "by_head", "adaptive"),
    ],
)
def test_budgets_of_heads_and_layers_where_a_policy_has_them(press, field, value):
    found = translate(press, PROMPT)
    assert getattr(found.plan.keep, field) == value
    assert found.plan.keep.budget == found.kept == 500


@pytest.mark.parametrize(
    ("press", "message"),
    [
        ("AdaKVPress(TOVAPress(0.5))", "tova has no by_head"),
        ("CriticalKVPress(KnormPress(0.5))", "knorm has no weigh"),
        ("CriticalAdaKVPress(TOVAPress(0.5))", "tova has no by_head"),
        ("CriticalAdaKVPress(LagKVPress(0.5))", "lagkv has no weigh"),
    ],
)
def test_a_policy_without_what_a_press_sets_is_refused(press, message):
    with pytest.raises(PlanError, match=f"there is no plan for .*: {message}"):
        translate(press, PROMPT)


def test_what_differs_is_said():
    [note] = translate("TOVAPress(0.5)", PROMPT).notes
    assert "always keeps the last token" in note
    assert len(translate("BlockPress(LagKVPress(0.5))", PROMPT).notes) == 2
    assert translate("SnapKVPress(0.5)", PROMPT).notes == ()


@pytest.mark.parametrize(
    ("press", "message"),
    [
        ("SnapKvPres(0.5)", "unknown press 'SnapKvPres': did you mean SnapKVPress\\?; there are plans for KnormPress"),
        ("Everything", "unknown press 'Everything'; there are plans for"),
        ("SnapKVPress(window=32)", "SnapKVPress has no parameter 'window': did you mean window_size\\?; it takes"),
        (
            "SnapKVPress(0.5, 64, 5, 1)",
            r"SnapKVPress takes 3 parameters \(compression_ratio, window_size, kernel_size\), not 4",
        ),
        ("SnapKVPress(0.5, compression_ratio=0.5)", "parameter compression_ratio is given twice"),
        ("SnapKVPress(**{})", r"parameter \*\* is given twice or unpacked"),
        ("SnapKVPress(x)", "compression_ratio=x is not a literal value"),
        ("SnapKVPress(__import__('os').getcwd())", "is not a literal value"),
        ("SnapKVPress(1.0)", "compression_ratio=1.0 must be a share from 0 up to, but not, 1"),
        ("SnapKVPress(True)", "compression_ratio=True must be a share"),
        ("SnapKVPress('0.5')", "compression_ratio='0.5' must be a share"),
        ("ExpectedAttentionPress(0.5, use_vnorm=False)", "there is a plan for use_vnorm=True alone, not for False"),
        ("AdaKVPress(ExpectedAttentionPress(0.5, use_vnorm=False))", "there is a plan for use_vnorm=True alone"),
        (
            "BlockPress(KVzipPress(0.5))",
            r"no plan for BlockPress around KVzipPress\(0.5\), which has a chunk of its own",
        ),
        ("AdaKVPress(SnapKVPress(0.5), 0.1)", "there is a plan for alpha_safeguard=0.2 alone, not for 0.1"),
        ("CriticalKVPress(SnapKVPress(0.5), 0.0)", "there is a plan for epsilon=0.0001 alone, not for 0.0"),
        ("AdaKVPress()", r"AdaKVPress wraps a press; write it like 'AdaKVPress\(SnapKVPress\(0.75\)\)'"),
        ("AdaKVPress(0.5)", "'0.5' is not a press; write it like"),
        ("BlockPress(KnormPress)", "'KnormPress' is not a press"),
        ("BlockPress(RandomPress(0.5))", "there is no plan for RandomPress: it removes units at random"),
        ("DuoAttentionPress(0.5)", "there is no plan for DuoAttentionPress: its gates are those of files"),
        ("SnapKVPress(0.5", r"press 'SnapKVPress\(0.5' cannot be read; write it like 'SnapKVPress\(0.75\)'"),
        ("", "press '' cannot be read"),
        ("1 + 1", "'1 \\+ 1' is not a press"),
        ("SnapKVPress(0.95)", "window=64 must be below budget=50"),
        ("LagKVPress(0.8)", "cannot hold sink=4 units and two partitions of lag=128; use a budget of at least 260"),
    ],
)
def test_what_has_no_plan_is_refused_with_a_reason(press, message):
    with pytest.raises(PlanError, match=message):
        translate(press, PROMPT)


def test_the_page_has_a_line_for_every_press():
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = dict(line.strip("| ").split(" | ", 1) for line in lines if re.match(r"\| `\w+` \|", line))
    assert rows.keys() == {f"`{name}`" for name in PRESSES | WITHOUT}
    assert all(rows[f"`{name}`"] == reason for name, reason in WITHOUT.items())
    for name, press in PRESSES.items():
        plan, alone, note = rows[f"`{name}`"].split(" | ")
        assert press.policy is None or plan.startswith(f"`{press.policy}`")
        assert all(f"`{mine}` for its `{its}`" in plan for mine, its in press.named.items())
        assert all(f"`{key}={value!r}`" in plan for key, value in press.sets.items())
        fixed = [f"`{key}={value!r}`" for key, value in press.takes.items() if key not in press.named.values()]
        assert alone == (", ".join(fixed) or "-")
        assert note == (press.note or "-")


SIGNATURES = """
import inspect, json, kvpress
presses = {name: getattr(kvpress, name) for name in dir(kvpress) if name.endswith("Press")}
told = {name: {key: each.default for key, each in inspect.signature(press).parameters.items()}
        for name, press in presses.items() if name not in ("BasePress", "ScorerPress")}
print(json.dumps(told, default=lambda _: None))
"""


@needs_kvpress
def test_every_press_that_kvpress_has_is_known_with_its_parameters_and_defaults():
    done = subprocess.run([PYTHONS["kvpress"], "-c", SIGNATURES], capture_output=True, text=True, check=True)
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert theirs.keys() == PRESSES.keys() | WITHOUT.keys()
    for name, press in PRESSES.items():
        assert list(theirs[name].items())[1:] == list(press.takes.items()), name


# Of a press's cache, the positions of the keys that each head of each layer has kept: among those of the whole prompt,
# but those that the press has masked.
KEPT = """
import json, sys, torch, kvpress
from transformers import AutoModelForCausalLM, DynamicCache
directory, ids, expressions = sys.argv[1], torch.tensor([json.loads(sys.argv[2])]), json.loads(sys.argv[3])
model, found = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval(), {}

def keys(press):
    cache = DynamicCache()
    with torch.inference_mode(), press(model):
        model(ids, cache=cache)
    return [layer.keys[0].double() for layer in cache.layers]

def masked(layer):
    indices = getattr(layer.self_attn, "masked_key_indices", None)
    return set() if indices is None else {*zip(indices[1].tolist(), indices[2].tolist())}

whole = keys(kvpress.KnormPress(0.0))
for text in expressions:
    kept = zip(keys(eval(text, vars(kvpress))), whole)
    places = [[sorted(torch.cdist(a, b).argmin(1).tolist()) for a, b in zip(*layer)] for layer in kept]
    gone = [masked(layer) for layer in model.model.layers]
    found[text] = [[[p for p in head if (at, p) not in out] for at, head in enumerate(layer)]
                   for layer, out in zip(places, gone)]
print(json.dumps(found))
"""
SAME = [
    "KnormPress(0.5)",
    "KeyDiffPress(0.7)",
    "SnapKVPress(0.5, 8, 3)",
    "TOVAPress(0.8)",
    "LagKVPress(0.33, n_sink=5, lag_size=5)",  # 40: sinks, the last partition, 3 of each other; no rank is torn apart
    "ExpectedAttentionPress(0.6, n_future_positions=64)",
    "AdaKVPress(KeyDiffPress(0.5))",
    "AdaKVPress(ExpectedAttentionPress(0.5, n_future_positions=64))",
    "CriticalKVPress(SnapKVPress(0.5, 8, 3))",
    "CriticalKVPress(SnapKVPress(0.7, 4, 3))",
    "CriticalAdaKVPress(SnapKVPress(0.5, 4, 3))",
]
# A plan takes the norm of values out of scores that are to be multiplied by another.
SAME_PLANS = dict.fromkeys(SAME) | {
    f"{outer}(ExpectedAttentionPress(0.6, n_future_positions=64, use_vnorm=False))": (
        f"expected_attention(budget=24, chunk=None, local=0, ahead=64, weigh='output'{more})"
    )
    for outer, more in (("CriticalKVPress", ""), ("CriticalAdaKVPress", ", by_head='adaptive'"))
}


@needs_kvpress
def test_what_kvpress_keeps_is_what_the_plans_keep(tmp_path):
    """Head by head, of a model with grouped queries."""
    model = small_model("llama-9-3")
    model.save_pretrained(tmp_path)
    ids = [5 + place * 37 % 89 for place in range(60)]
    command = [PYTHONS["kvpress"], "-c", KEPT, str(tmp_path), json.dumps(ids), json.dumps([*SAME_PLANS])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    theirs, llm = json.loads(done.stdout.splitlines()[-1]), LLM(model, prefill_chunk=16)
    for text, plan in SAME_PLANS.items():
        plan = translate(text, len(ids)).plan if plan is None else Plan.parse(plan)
        state, seen = admit(llm.decoder, None, plan, ids, 1, 16)
        prefill(llm.decoder, state, seen, 16)
        mine = held(state)
        if text.startswith("TOVA"):  # whose last token is there in any case
            heads = zip(itertools.chain(*mine), itertools.chain(*theirs[text]), strict=True)
            assert all({*their} - {len(ids) - 1} <= {*own} for own, their in heads)
        else:
            assert mine == theirs[text], text
