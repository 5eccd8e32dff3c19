"""DuoAttention: which heads keep everything, against a restatement token by token; the bytes; gates of a file."""

import json

import pytest
import torch

from covering import covered
from driving import prefill
from evict_reference import held, run_reference, run_winnow
from models import small_model
from trials import fresh, small_llm
from winnow import LLM, Plan
from winnow.errors import ModelError, PlanError
from winnow.models.head_gates import FILE, HeadGates, read_gates
from winnow.policies.base import LayerContext
from winnow.policies.keep.duo import Duo
from winnow.runtime.adapters import base_name, fingerprint

PROMPT = 31
GATES = (0.9, 0.1, 0.2, 0.8, 0.7, 0.3, 0.0, 0.4)  # four layers of two KV heads


def kinds(policy, layers=4, kv_heads=2):
    return [policy.retrieval(LayerContext(at, layers, None, kv_heads)) for at in range(layers)]


def shared_rule(policy):
    """What a layer's heads keep: everything, or the first and the last."""

    def shared(layer, notes, lives):
        tokens = len(notes[0].ids)
        return [
            set(live) if everything else {p for p in live if p < policy.sink or p >= tokens - policy.recent}
            for live, everything in zip(lives, kinds(policy)[layer], strict=True)
        ]

    return shared


@covered(
    parameters=[
        {"share": 0.5},
        {"share": 0.25, "decode_chunk": 1},
        {"threshold": 0.35, "chunk": None},
        {"share": 0.0, "sink": 0, "decode_chunk": None},
        {"share": 0.5, "gates": None, "recent": 1, "chunk": 3},
    ],
    prefill_chunk=[1, 7, 64],
)
def test_equals_the_reference(text, parameters, prefill_chunk):
    policy = Duo(**{"gates": GATES, "sink": 2, "recent": 4, "chunk": 6, "decode_chunk": 4, **parameters})
    llm = LLM(small_model("llama"), prefill_chunk=prefill_chunk)
    expected, sets = run_reference(
        llm.model, text, None, prompt=PROMPT, budget=0, chunk=policy.chunk, local=0, positions="original",
        decode_chunk=policy.decode_chunk, shared=shared_rule(policy),
    )  # fmt: skip
    got, got_sets = run_winnow(llm, text, policy, PROMPT)
    assert got_sets == sets[PROMPT - 1 :]
    torch.testing.assert_close(got, expected[PROMPT - 1 :], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"gates": GATES}, [[True, False], [False, True], [True, False], [False, True]]),
        ({"gates": GATES, "share": 0.25}, [[True, False], [False, True], [False, False], [False, False]]),
        ({"gates": GATES, "threshold": 0.3}, [[True, False], [False, True], [True, True], [False, True]]),
        ({"share": 0.625}, [[True, True], [True, False], [True, False], [True, False]]),
        ({"share": 1.0}, [[True, True]] * 4),
        ({"share": 0.0}, [[False, False]] * 4),
    ],
)
def test_heads_with_the_highest_gates_keep_everything(parameters, expected):
    assert kinds(Duo(**parameters)) == expected


def test_a_share_is_one_of_the_heads_that_it_matters_to():
    """Layers 0 and 2 have a window, which all of their heads keep, whatever their gates."""
    policy = Duo(gates=GATES, share=0.5)
    found = [policy.retrieval(layer) for layer in small_llm("gemma2").decoder.shape.contexts]
    assert found == [[False, False], [False, True], [False, False], [False, True]]


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_bytes_are_those_of_the_formula(family, share, text):
    """After the prompt and each further token, of layers without a window."""
    llm = LLM(small_model(family), prefill_chunk=10)
    policy = Duo(gates=GATES, share=share, sink=2, recent=4, chunk=6, decode_chunk=4)
    text = text[:42]
    state, prompt = fresh(llm, Plan(keep=policy), text)
    prefill(llm.decoder, state, prompt, llm.prefill_chunk)
    shape = llm.decoder.shape
    state.measure()
    for cache, context in zip(state.caches, shape.contexts, strict=True):
        if context.window is None:
            everything = sum(policy.retrieval(context))
            units = everything * PROMPT + (shape.kv_heads - everything) * (2 + 4)
            assert cache.units == units
            assert cache.nbytes == units * shape.unit_bytes
            assert cache.peak_nbytes <= policy.bound(PROMPT, 11, context) * shape.kv_heads * shape.unit_bytes
            assert max(map(len, held(state)[context.index])) <= policy.longest(PROMPT, 11, context, shape.kv_heads)
            if share < 1:
                assert cache.held_beside_nbytes == units * 8  # where each head's units stand in the text
    assert state.stats.cache_bytes == sum(cache.nbytes for cache in state.caches)


def test_a_share_of_one_is_full_attention(text):
    llm = LLM(small_model("llama"), prefill_chunk=7)
    plan = Plan.parse("duo(share=1.0, sink=1, recent=2, chunk=4, decode_chunk=2)")
    expected = llm.logits(text)[PROMPT - 1 :]
    torch.testing.assert_close(llm.logits(text, decode_from=PROMPT, plan=plan), expected, rtol=0, atol=1e-5)


@pytest.fixture
def saved(tmp_path):
    model = small_model("llama")
    gates = HeadGates(base_name(model), fingerprint(model), [list(GATES[at : at + 2]) for at in range(0, 8, 2)])
    gates.save(tmp_path)
    return tmp_path


def test_gates_of_a_directory_are_the_numbers_in_it(saved, text):
    llm = LLM(small_model("llama"))
    named, given = (Plan(keep=Duo(gates=gates, **Duo.trial)) for gates in (str(saved), GATES))
    torch.testing.assert_close(
        llm.logits(text, decode_from=PROMPT, plan=named), llm.logits(text, decode_from=PROMPT, plan=given)
    )
    assert read_gates(saved).layers == [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.0, 0.4]]


def test_bundled_gates_have_their_models_name_and_a_directory_comes_before_them(saved, monkeypatch):
    monkeypatch.chdir(saved)
    (saved / "smollm2").mkdir()
    assert len(read_gates("smollm2").layers) == 30  # a directory without gates is another thing
    (saved / FILE).rename(saved / "smollm2" / FILE)
    assert len(read_gates("smollm2").layers) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fingerprint": "0"}, "were trained on .*, and this model, .*, has other weights.*winnow train duo"),
        (
            {"layers": [[0.5]]},
            "were trained on .*: they are of 1 KV heads, and the model 4 layers of 2 KV heads; train its own",
        ),
        ({"layers": [[0.5], [0.5, 1.5]]}, "is damaged .*different numbers of heads.*train the gates again"),
        ({"layers": [[0.5, 1.5]] * 4}, "is damaged .*no number from 0 to 1"),
        ({"layers": []}, "is damaged"),
        ({"surplus": 1}, "is damaged"),
    ],
)
def test_gates_of_another_model_and_damaged_ones_are_refused(saved, change, message):
    written = json.loads((saved / FILE).read_text()) | change
    (saved / FILE).write_text(json.dumps(written))
    with pytest.raises(ModelError, match=message):
        LLM(small_model("llama")).check([[5] * PROMPT], plan=Plan(keep=Duo(gates=str(saved))))


@pytest.mark.parametrize(
    ("plan", "error", "message"),
    [
        ("duo(gates='nowhere')", ModelError, "nowhere holds no gates of heads: it needs head_gates.json; winnow train"),
        ("duo(gates=[0.5, 0.5])", PlanError, "gates has 2 numbers, and the model 4 layers of 2 KV heads; give 8"),
        (
            "duo(gates='smollm2-gates')",
            ModelError,
            "are of 90 KV heads, and the model 4 layers of 2 KV heads; train its",
        ),
        ("duo(gates=[0.5, 1.5])", PlanError, r"gates=\[0.5, 1.5\] must be from 0 to 1, each"),
        ("duo(gates='')", PlanError, "gates='' is no directory"),
        ("duo(threshold=0.5)", PlanError, "threshold=0.5 is for trained gates; give gates=..., or a share"),
        ("duo(gates=[0.5], threshold=0.5, share=0.2)", PlanError, "share=0.2 changes nothing here: it needs no thresh"),
        ("duo(share=1.5)", PlanError, "share=1.5 must be at least 0 and at most 1"),
        (
            "duo() + quest",
            PlanError,
            "quest reads as many units of every KV head, and duo keeps different numbers; use",
        ),
    ],
)
def test_what_cannot_be_is_refused(plan, error, message):
    with pytest.raises(error, match=message):
        LLM(small_model("llama")).check([[5] * PROMPT], plan=plan)


def test_gates_of_a_file_are_counted_without_the_model():
    """As `winnow fit` does, which has its shape alone."""
    shape = LLM(small_model("llama")).decoder.shape
    with pytest.raises(ModelError, match=r"the gates smollm2-gates were trained on .*: they are of 90 KV heads"):
        Plan.parse("duo(gates='smollm2-gates')").validate(shape)
