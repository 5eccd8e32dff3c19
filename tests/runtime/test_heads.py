"""Retaining heads: what they compute, what is on disk, whose they are, and how an LLM finds them."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.activations import ACT2FN

from locret_reference import random_heads
from models import CONFIGS, small_model
from winnow import LLM, SamplingParams
from winnow.errors import ModelError
from winnow.models import files
from winnow.runtime import heads as module
from winnow.runtime.adapters import fingerprint
from winnow.runtime.heads import HeadsConfig, RetainingHeads, bundled_for, load_heads

PROMPT, WIDTH = 31, 16
PLAN = "locret(budget=9, chunk=6, stabilizers=3, local=4)"


@pytest.fixture
def llm():
    return LLM(small_model("llama"))


@pytest.fixture
def heads(llm):
    return random_heads(llm, WIDTH)


@pytest.fixture
def saved(heads, tmp_path):
    heads.save(tmp_path / "heads")
    return tmp_path / "heads"


@pytest.fixture
def expected(heads, text):
    return LLM(small_model(), heads=heads).logits(text, decode_from=PROMPT, plan=PLAN)


def same(heads, other):
    pairs = zip([*heads.first, *heads.second], [*other.first, *other.second], strict=True)
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_score_is_w2_act_w1_of_everything_side_by_side(name):
    """Row by row and head by head, with the activation of the family's MLPs."""
    llm = LLM(small_model(name))
    shape, heads = llm.decoder.shape, random_heads(llm, WIDTH)
    q = torch.randn(shape.q_heads, 5, shape.head_dim)
    k, v = torch.randn(2, shape.kv_heads, 5, shape.head_dim)
    config = llm.model.config
    act = ACT2FN[getattr(config, "hidden_act", None) or config.hidden_activation]
    got = heads(2, q, k, v)
    assert got.shape == (shape.kv_heads, 5)
    assert got.dtype == torch.float32
    for row in range(5):
        z = torch.cat([one[row] for each in (q, k, v) for one in each])
        expected = heads.second[2] @ act(heads.first[2] @ z)
        torch.testing.assert_close(got[:, row], expected, rtol=0, atol=1e-6)


def test_scores_are_float32_whatever_the_heads_are(llm, heads):
    half = heads.to("cpu", torch.bfloat16)
    q, k, v = torch.randn(4, 3, 16), torch.randn(2, 3, 16), torch.randn(2, 3, 16)
    assert half(0, q, k, v).dtype == torch.float32
    torch.testing.assert_close(half(0, q, k, v), heads(0, q, k, v), rtol=0, atol=0.02)
    assert {weight.dtype for weight in heads.first} == {torch.float32}  # left as they are


def test_files_hold_the_named_tensors_and_the_config(llm, heads, saved):
    inputs = (4 + 2 * 2) * 16
    found = load_file(saved / "retaining_heads.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {
        f"layers.{layer}.{name}.weight": shape
        for layer in range(4)
        for name, shape in (("fc1", (WIDTH, inputs)), ("fc2", (2, WIDTH)))
    }
    assert torch.equal(found["layers.3.fc1.weight"], heads.first[3])
    assert torch.equal(found["layers.3.fc2.weight"], heads.second[3])
    config = json.loads((saved / "config.json").read_text())
    assert {key: config[key] for key in ("layers", "q_heads", "kv_heads", "head_dim", "width", "activation")} == {
        "layers": 4, "q_heads": 4, "kv_heads": 2, "head_dim": 16, "width": WIDTH, "activation": "silu"
    }  # fmt: skip
    assert config["fingerprint"] == fingerprint(llm.model)
    assert config["base"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_save_and_load_are_exact(heads, tmp_path, dtype):
    cast = heads.to("cpu", dtype)
    cast.save(tmp_path / "deep" / "heads")
    loaded = RetainingHeads.load(tmp_path / "deep" / "heads")
    assert same(loaded, cast)
    assert loaded.config == cast.config


def test_the_seed_decides(llm):
    assert same(random_heads(llm, WIDTH, 3), random_heads(llm, WIDTH, 3))
    assert not same(random_heads(llm, WIDTH, 3), random_heads(llm, WIDTH, 4))


def test_every_way_to_give_heads_is_the_same(llm, heads, saved, expected, text, tmp_path):
    ways = {
        "a directory": LLM(small_model(), heads=saved),
        "its name": LLM(small_model(), heads=str(saved)),
        "the object": LLM(small_model(), heads=heads),
    }
    for way in ways.values():
        assert torch.equal(way.logits(text, decode_from=PROMPT, plan=PLAN), expected)
    plan = PLAN[:-1] + f", heads={str(saved)!r})"
    assert torch.equal(llm.logits(text, decode_from=PROMPT, plan=plan), expected)
    ways["a directory"].save_heads(tmp_path / "again")
    assert same(RetainingHeads.load(tmp_path / "again"), heads)
    assert torch.equal(
        LLM(small_model(), heads=tmp_path / "again").logits(text, decode_from=PROMPT, plan=PLAN), expected
    )


def test_the_plan_decides_over_the_llm(heads, saved, expected, text):
    model = small_model()
    llm = LLM(model, heads=random_heads(LLM(model), WIDTH, seed=9))
    own = llm.logits(text, decode_from=PROMPT, plan=PLAN)
    assert (own - expected).abs().max() > 1e-3
    named = llm.logits(text, decode_from=PROMPT, plan=PLAN[:-1] + f", heads={str(saved)!r})")
    assert torch.equal(named, expected)
    assert torch.equal(llm.logits(text, decode_from=PROMPT, plan=PLAN), own)


def test_a_model_in_bfloat16_takes_the_heads_of_the_same_weights(saved):
    llm = LLM(small_model(dtype=torch.bfloat16), heads=saved)
    assert {weight.dtype for weight in llm.decoder.heads(None).first} == {torch.bfloat16}


@pytest.mark.parametrize("other", ["qwen3", "llama"])
def test_heads_of_another_model_are_refused(heads, saved, other, text):
    """Another architecture, and the same one with other weights."""
    model = small_model(other)
    if other == "llama":
        with torch.no_grad():
            model.model.layers[2].mlp.up_proj.weight.mul_(1.5)
    message = r"the retaining heads were trained on LlamaForCausalLM, .* has other weights.*winnow train locret"
    for given in (saved, heads):
        with pytest.raises(ModelError, match=message):
            LLM(model, heads=given)
    llm, plan = LLM(model), PLAN[:-1] + f", heads={str(saved)!r})"
    for call in (llm.check, llm.generate):
        with pytest.raises(ModelError, match=message):
            call([text], plan=plan)


def test_directories_without_heads_say_what_is_missing(llm, saved, tmp_path, text):
    (saved / "retaining_heads.safetensors").unlink()
    for place in (tmp_path / "none", saved):
        with pytest.raises(ModelError, match=r"holds no retaining heads: it needs retaining_heads\.safetensors and"):
            LLM(small_model(), heads=place)
        with pytest.raises(ModelError, match="holds no retaining heads"):
            llm.check([text], plan=PLAN[:-1] + f", heads={str(place)!r})")


def test_saving_without_heads_says_how_to_train_some(llm, tmp_path):
    with pytest.raises(ModelError, match=r"no retaining heads for .*train some with winnow train locret"):
        llm.save_heads(tmp_path / "heads")
    assert not (tmp_path / "heads").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda config: {**config, "layers": 0},
        lambda config: {**config, "width": "16"},
        lambda config: {**config, "activation": "none such"},
        lambda config: {**config, "more": 1},
        lambda config: {key: value for key, value in config.items() if key != "fingerprint"},
        lambda config: [config],
    ],
)
def test_a_damaged_config_is_refused(saved, change):
    path = saved / "config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ModelError, match=r"config\.json is damaged .*train the heads again"):
        LLM(small_model(), heads=saved)


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "\udcff"])
def test_a_config_that_is_no_json_object_is_refused(saved, text):
    (saved / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelError, match="damaged"):
        RetainingHeads.load(saved)


def without(tensors, name):
    return {key: tensor for key, tensor in tensors.items() if key != name}


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: without(tensors, "layers.3.fc2.weight"),
        lambda tensors: {**tensors, "layers.4.fc1.weight": torch.zeros(1)},
        lambda tensors: {**tensors, "layers.0.fc1.weight": tensors["layers.0.fc1.weight"].T.contiguous()},
        lambda tensors: {**tensors, "layers.0.fc2.weight": torch.zeros(1, WIDTH)},
    ],
)
def test_damaged_weights_are_refused(saved, change):
    path = saved / "retaining_heads.safetensors"
    save_file(change(load_file(path)), path)
    with pytest.raises(ModelError, match=r"retaining_heads\.safetensors .*train the heads again"):
        LLM(small_model(), heads=saved)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(saved, value):
    path = saved / "retaining_heads.safetensors"
    tensors = load_file(path)
    tensors["layers.3.fc2.weight"][0, 0] = value
    save_file(tensors, path)
    with pytest.raises(ModelError, match=r"layers\.3\.fc2\.weight holds values that are not finite"):
        LLM(small_model(), heads=saved)


@pytest.mark.parametrize("size", [0, 7, 200])
def test_a_file_that_was_cut_short_is_refused(saved, size):
    path = saved / "retaining_heads.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ModelError, match=r"retaining_heads\.safetensors is damaged"):
        LLM(small_model(), heads=saved)


@pytest.fixture
def bundle(monkeypatch, tmp_path):
    """Two bundled names, of which one has no files."""
    monkeypatch.setattr(module, "BUNDLED", ("absent-heads", "small-heads"))
    for place in (module, files):
        monkeypatch.setattr(place, "asset", lambda name: tmp_path / name)
    return tmp_path / "small-heads"


def test_bundled_heads_are_found_by_the_weights(llm, heads, bundle, expected, text):
    assert bundled_for(llm.model) is None
    heads.save(bundle)
    assert bundled_for(llm.model) == bundle
    assert bundled_for(small_model("qwen3")) is None
    assert torch.equal(LLM(small_model()).logits(text, decode_from=PROMPT, plan=PLAN), expected)
    with pytest.raises(ModelError, match="no retaining heads"):
        LLM(small_model("qwen3")).check([text], plan=PLAN)


def test_bundled_heads_have_a_name(llm, heads, bundle, expected, text):
    heads.save(bundle)
    assert same(load_heads("small-heads", llm.model), heads)
    assert same(load_heads("small", llm.model), heads)  # by the name of their model
    plan = PLAN[:-1] + ", heads='small-heads')"
    assert torch.equal(LLM(small_model()).logits(text, decode_from=PROMPT, plan=plan), expected)
    assert torch.equal(LLM(small_model(), heads="small-heads").logits(text, decode_from=PROMPT, plan=PLAN), expected)


def test_a_directory_comes_before_the_bundled_heads_of_that_name(llm, heads, bundle, tmp_path, monkeypatch):
    random_heads(llm, WIDTH, seed=9).save(bundle)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small").mkdir()
    assert not same(load_heads("small", llm.model), heads)  # a directory without heads is another thing
    heads.save(tmp_path / "small")
    assert same(load_heads("small", llm.model), heads)


def test_given_heads_come_before_bundled_ones(llm, heads, bundle, expected, text):
    random_heads(llm, WIDTH, seed=9).save(bundle)
    assert torch.equal(LLM(small_model(), heads=heads).logits(text, decode_from=PROMPT, plan=PLAN), expected)
    bundled = LLM(small_model()).logits(text, decode_from=PROMPT, plan=PLAN)
    assert (bundled - expected).abs().max() > 1e-3


def test_heads_are_loaded_once(heads, saved, text, monkeypatch):
    llm, loads = LLM(small_model()), []
    load = RetainingHeads.load
    monkeypatch.setattr(RetainingHeads, "load", lambda directory: loads.append(directory) or load(directory))
    plan = PLAN[:-1] + f", heads={str(saved)!r})"
    llm.generate([text, text[:20]], SamplingParams(max_tokens=2, ignore_eos=True), plan=plan)
    llm.logits(text, decode_from=PROMPT, plan=plan)
    assert loads == [saved]


def test_a_config_tells_the_shapes(llm):
    config = HeadsConfig.of(llm.model, llm.decoder.shape, WIDTH)
    assert config.inputs == (4 + 2 * 2) * 16
    assert config.base == "LlamaForCausalLM"
