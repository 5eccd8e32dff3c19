"""The first layer that finds what was said before: against the stock model's maps, and where it puts the gates."""

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from models import small_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, SamplingParams
from winnow.engine import depth
from winnow.errors import PlanError, WinnowError
from winnow.plan import Plan
from winnow.policies.compute.schedule import last_layer
from winnow.runtime.loading import load
from winnow.server.service import Service
from winnow.server.settings import Settings
from winnow.tune.candidates import QUARTER

DEFAULTS = ("lazyllm", "fastkv", "static_prune")


def layers_of(plan, llm):
    return [gate.layer for gate in Plan.parse(plan).compute.gates(llm.decoder.shape)]


@pytest.fixture(scope="module")
def needle():
    return load("needle", device=torch.device("cpu"), dtype=None).model


def sunk(model, by):
    """The same model with layers before its first that change nothing, so that it finds so much later."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers += by
    deeper = AutoModelForCausalLM.from_config(config, dtype=model.dtype).eval()
    deeper.model.load_state_dict(model.model.state_dict(), strict=False)
    for place, layer in enumerate(deeper.model.layers):
        if place >= by:
            layer.load_state_dict(model.model.layers[place - by].state_dict())
        else:
            torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
            torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    deeper.lm_head.load_state_dict(model.lm_head.state_dict())
    return deeper


@torch.inference_mode()
def stock(model, ids):
    """Per layer, in plain loops over the stock model's maps: what the best head pays to where the repetition stood."""
    model = copy.deepcopy(model)
    model.set_attn_implementation("eager")
    found = []
    for (weights,) in model(torch.tensor([ids]), output_attentions=True, use_cache=False).attentions:
        paid = torch.zeros(len(weights), dtype=torch.float64)
        for row in range(64):
            first = 1 + row
            paid += weights[:, 448 + row, max(0, first - 4) : first + 9].sum(-1).double()
        found.append(float(paid.max()) / 64)
    return found


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3", "gpt_oss"])
def test_what_is_measured_equals_the_stock_models_maps(family):
    llm = LLM(small_model(family))
    ids = depth._repeating(llm.decoder.shape.vocab, llm.decoder.config.bos_token_id)
    told, windows = depth.attention_back(llm.decoder), llm.decoder.shape.windows
    assert [share is None for share in told] == [window is not None for window in windows]
    for share, expected in zip(told, stock(llm.model, ids), strict=True):
        assert share is None or share == pytest.approx(expected, abs=1e-5)


def test_the_repetition_is_of_what_came_first():
    ids = depth._repeating(97, 1)
    assert len(ids) == 512
    assert ids[0] == 1
    assert ids[448:] == ids[1:65]
    assert len(set(ids)) > 90
    assert max(ids) < 97
    for none in (None, [1], 97, -1):  # nothing that stands before a text
        assert depth._repeating(97, none)[1:] == ids[1:]
        assert 0 <= depth._repeating(97, none)[0] < 97


def test_the_toy_finds_in_its_second_layer_by_the_stock_models_maps(needle):
    llm = LLM(needle)
    paid = stock(needle, depth._repeating(llm.decoder.shape.vocab, needle.config.bos_token_id))
    assert [share >= depth.FINDS for share in paid] == [layer == 1 for layer in range(8)]
    depth.measure_depth(llm.decoder)
    assert llm.decoder.shape.finds == 1


@pytest.mark.parametrize(
    ("by", "lazyllm", "fastkv", "static_prune"),
    [(0, [2, 4, 6], [4], [2]), (3, [5, 7, 9], [6], [5]), (6, [8, 10, 12], [8], [8])],
)
def test_gates_stand_above_the_layer_that_finds(needle, by, lazyllm, fastkv, static_prune):
    llm = LLM(sunk(needle, by))
    for plan in DEFAULTS:
        llm.prepare(plan)
    assert llm.decoder.shape.finds == 1 + by
    assert [layers_of(plan, llm) for plan in DEFAULTS] == [lazyllm, fastkv, static_prune]
    assert QUARTER.layer(llm.decoder.shape) == static_prune[0]


def test_a_default_equals_the_layers_it_stands_for(needle, text):
    llm = LLM(sunk(needle, 3))
    ids = (text * 5)[:200]
    told = {plan: llm.logits(ids, decode_from=190, plan=plan) for plan in ("static_prune", "static_prune(layers=5)")}
    assert torch.equal(*told.values())
    lower = llm.logits(ids, decode_from=190, plan="static_prune(layers=3)")
    assert not torch.allclose(lower, told["static_prune"], atol=1e-3)


def test_the_layers_above_it_are_not_computed(needle):
    llm, layers = LLM(sunk(needle, 2)), []
    assert [share is None for share in depth.attention_back(llm.decoder, enough=depth.FINDS)] == [False] * 4 + [
        True
    ] * 6

    def look(piece):
        layers.append(piece.layer)
        return piece.layer == 2

    depth.look_at(llm.decoder, list(range(64)), look)
    assert layers == [0, 1, 2]


def test_it_is_measured_once_and_anew_where_weights_have_changed(needle, monkeypatch):
    llm, looked = LLM(copy.deepcopy(needle)), []
    look_at = depth.look_at
    monkeypatch.setattr(depth, "look_at", lambda *given: looked.append(1) or look_at(*given))
    assert [llm.prepare(plan) and llm.decoder.shape.finds for plan in DEFAULTS] == [1, 1, 1]
    assert len(looked) == 1
    with torch.no_grad():
        llm.model.model.layers[1].self_attn.q_proj.weight.zero_()
    llm.prepare("lazyllm")
    assert len(looked) == 2
    assert llm.decoder.shape.finds != 1


def test_several_threads_measure_once(needle, monkeypatch):
    llm, looked = LLM(needle), []
    look_at = depth.look_at
    monkeypatch.setattr(depth, "look_at", lambda *given: looked.append(1) or look_at(*given))
    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(lambda _: str(llm.prepare("lazyllm")) == "lazyllm", range(6)))
    assert (len(looked), llm.decoder.shape.finds) == (1, 1)


def test_what_runs_goes_by_the_weights_as_they_are_then(needle):
    """Not by those of when it was checked; so what is retained of it can be gone on from."""
    llm = LLM(sunk(needle, 3))
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    ids = list(range(3, 203))
    with llm.engine(retain_bytes=2**26) as engine:
        [checked] = llm.check([ids], params, plan="static_prune(voters=4)")
        assert llm.decoder.shape.finds == 4
        with torch.no_grad():
            llm.model.model.layers[4].self_attn.q_proj.weight.zero_()
        engine.enqueue(checked)
        first = [output.completion for output in engine.run() if output.completion is not None]
        assert llm.decoder.shape.finds != 4
        [again] = llm.check([[*ids, 7]], params, plan="static_prune(voters=4)")
        later = [output.completion for output in engine.follow(again) if output.completion is not None]
    assert [each.finish_reason for each in (*first, *later)] == ["length"] * 2
    assert later[0].stats.cached_tokens > 0


def test_what_is_refused_anyway_is_refused_before_anything_is_measured(needle, monkeypatch):
    monkeypatch.setattr(depth, "look_at", None)
    llm = LLM(needle)
    for prompt, plan, message in (
        ([10**9], "lazyllm", "token 0 is 1000000000"), ([], "lazyllm", "is empty"),
        ([5], "static_prune(layers=None) + lococo(budget=64)", "lococo"),
        ([5], "fastkv + locret(heads='nowhere')", "nowhere"), ([5] * 40_000, "lazyllm", "more than the model's"),
        ([5], "fastkv(window=3) + snapkv(budget=300, window=200)", "snapkv"),
    ):  # fmt: skip
        with pytest.raises(WinnowError, match=message):
            llm.check([prompt], plan=plan)


def test_shares_for_three_gates_are_refused_where_there_is_room_for_fewer(needle):
    shape = replace(LLM(needle).decoder.shape, finds=5)  # of eight layers
    Plan.parse("lazyllm").validate(shape)
    assert [gate.layer for gate in Plan.parse("lazyllm").compute.gates(shape)] == [6, 7]
    with pytest.raises(
        PlanError, match=r"first finds what was said before in layer 5 has 2 preset layers.*give layers"
    ):
        Plan.parse("lazyllm(cumulative=[0.4, 0.2, 0.1])").validate(shape)


def test_tokens_are_not_parked_below_the_layer_that_finds(needle):
    """Where parking pays only in layers that do not."""
    shape = replace(LLM(needle).decoder.shape, finds=4, hidden=8 * 64, kv_heads=1, head_dim=64)
    assert last_layer(shape) == 4
    with pytest.raises(PlanError, match=r"in layer 4 has none above it to prune at.*revive='never'.*or give layers"):
        Plan.parse("lazyllm").validate(shape)
    Plan.parse("lazyllm(revive='never')").validate(shape)
    Plan.parse("lazyllm").validate(replace(shape, finds=3))


@pytest.mark.parametrize(
    "plan",
    ["full", "lazyllm(layers=[1, 2], keep=0.5)", "lazyllm(keep=1.0)", "fastkv(layer=2)", "fastkv(keep=1.0)",
     "static_prune(layers=1)", "static_prune(keep=1.0)", "speed(cutoff=2)", "snapkv(budget=128)"],
)  # fmt: skip
def test_nothing_is_measured_for_plans_that_do_not_go_by_it(plan, needle, monkeypatch):
    monkeypatch.setattr(depth, "look_at", None)
    llm = LLM(needle)
    llm.prepare(plan)
    assert llm.decoder.shape.finds is None


@pytest.mark.parametrize("family", ["llama-dynamic", "mistral"])
def test_a_model_of_few_positions_or_of_windows_alone_goes_by_shares(family, monkeypatch):
    monkeypatch.setattr(depth, "look_at", None)
    llm = LLM(small_model(family))
    llm.prepare("static_prune")
    assert llm.decoder.shape.finds is None
    assert layers_of("static_prune", llm) == [1]


def test_a_model_that_finds_nowhere_goes_by_shares():
    llm = LLM(small_model("llama"))
    llm.prepare("static_prune")
    assert "finds" in llm.decoder.derived
    assert llm.decoder.shape.finds is None
    assert layers_of("static_prune", llm) == [1]


def test_the_first_that_finds_is_not_the_last():
    assert depth.first_that_finds([0.1, None, 0.3, 0.9]) == 2
    assert depth.first_that_finds([0.1, None, 0.2, 0.9]) is None


@pytest.mark.parametrize(("settings", "measured"), [({}, True), ({"allow_plans": ("snapkv",)}, False),
                                                   ({"allow_plans": ("fastkv",)}, True)])  # fmt: skip
def test_a_server_that_takes_such_plans_has_measured_when_it_starts(needle, settings, measured):
    llm = LLM(needle, tokenizer=byte_tokenizer())
    Service(llm, Settings(**settings), "needle")
    assert llm.decoder.shape.finds == (1 if measured else None)
