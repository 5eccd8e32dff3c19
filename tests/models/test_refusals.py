"""Model directories and hub ids that cannot be used: one line that says what it is, and nothing in them is run."""

import json
import os
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from huggingface_hub.errors import HfHubHTTPError
from safetensors.torch import load_file, save_file

from models import small_model
from tiny import save_tiny_model
from winnow import LLM
from winnow.errors import ModelError, UnsupportedModelError
from winnow.models import hub
from winnow.models.finite import check_finite


@pytest.fixture
def saved(tmp_path):
    return save_tiny_model(tmp_path / "model")


def write(path: Path, **settings: object) -> None:
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | settings))


def refused(place: object, message: str, kind: type[ModelError] = ModelError) -> None:
    with pytest.raises(kind, match=message) as raised:
        LLM(place, device="cpu")
    assert "\n" not in str(raised.value)


def test_a_config_cut_to_fewer_layers(tmp_path):
    small_model().save_pretrained(tmp_path)
    write(tmp_path / "config.json", num_hidden_layers=2)
    refused(tmp_path, r"config\.json says 2 layers, and the weights hold 4")


def test_a_tensor_that_nothing_uses(saved):
    tensors = load_file(saved / "model.safetensors")
    tensors["model.layers.1.self_attn.gate.weight"] = torch.zeros(2)
    save_file(tensors, saved / "model.safetensors", metadata={"format": "pt"})
    refused(saved, r"holds 1 tensors that the model of config\.json has no use for, such as .*self_attn\.gate")


def test_what_older_checkpoints_carry_is_not_refused(saved):
    tensors = load_file(saved / "model.safetensors")
    for layer in range(2):
        tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, saved / "model.safetensors", metadata={"format": "pt"})
    LLM(saved, device="cpu")


def test_a_tied_head_that_is_stored_too_is_not_refused(tmp_path, text):
    model = small_model("gemma2")
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    torch.testing.assert_close(LLM(tmp_path, device="cpu").logits(text), LLM(model).logits(text))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_that_are_no_numbers(saved, value, dtype):
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(saved / "model.safetensors").items()}
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = value
    save_file(tensors, saved / "model.safetensors", metadata={"format": "pt"})
    refused(saved, r"the weight model\.layers\.1\.mlp\.up_proj\.weight holds values that are not finite")


def test_the_largest_numbers_are_finite():
    largest = [
        (str(kind), torch.full((9,), torch.finfo(kind).max, dtype=kind)) for kind in (torch.float16, torch.float32)
    ]
    check_finite([*largest, ("none", torch.zeros(0)), ("ids", torch.arange(3))], "here")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_hidden_layers": -1}, "num_hidden_layers=-1 in config.json must be a whole number from 1"),
        ({"num_hidden_layers": "8"}, "num_hidden_layers='8' in config.json must be a whole number"),
        ({"vocab_size": 2.5}, "vocab_size=2.5"),
        ({"num_attention_heads": 0}, "num_attention_heads=0"),
        ({"hidden_size": 10**30}, "hidden_size=1000"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps=nan in config.json must be a finite number"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": float("inf")}}, "factor=inf"),
        ({"rope_parameters": 5}, "does not describe a model: .*rope_parameters"),
        ({"hidden_act": "nosuch"}, "does not describe a model"),
        ({"to_dict": 5}, "'to_dict' in config.json is no setting"),
        ({"dtype": "int8"}, "dtype=torch.int8"),
        ({"intermediate_size": 2**30}, r"mlp\.\w+\.weight has the shape .* by config\.json it has"),
        ({"num_key_value_heads": 4}, r"\[16, 32\], and by config\.json it has \[32, 32\]"),
    ],
)
def test_settings_that_cannot_be(saved, settings, message):
    write(saved / "config.json", **settings)
    refused(saved, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"config\.json is damaged: it is not JSON"),
        ("[1]", "holds a JSON list, not an object"),
        ("[" * 100_000, "is not JSON"),
        ('{"vocab_size": "\udcff"}', "is not JSON"),
    ],
)
def test_a_config_that_is_no_object(saved, text, message):
    (saved / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    refused(saved, message)


def test_a_config_is_not_read_beyond_a_bound(saved):
    with (saved / "config.json").open("r+b") as file:
        file.truncate(2**40)
    refused(saved, r"config\.json has 1,099,511,627,776 bytes, more than")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "generation_config.json"])
@pytest.mark.parametrize("to", ["nowhere", "itself", "device", "pipe"])
def test_files_that_are_none(saved, name, to):
    path = saved / name
    path.unlink()
    if to == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"nowhere": "nowhere", "itself": name, "device": "/dev/zero"}[to])
    refused(saved, f"{name} is (a symbolic link that leads nowhere|not a regular file)")


def test_links_to_files_are_followed_as_in_the_hubs_cache(saved, tmp_path):
    for path in list(saved.iterdir()):
        path.rename(tmp_path / f"blob of {path.name}")
        path.symlink_to(tmp_path / f"blob of {path.name}")
    assert LLM(saved, device="cpu").tokenizer is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eos_token_id": "</s>"}, r"eos_token_id='</s>' in generation_config\.json must be ids from 0 to 258"),
        ({"eos_token_id": [2, 400]}, "must be ids from 0 to 258"),
    ],
)
def test_end_tokens_that_there_are_not(saved, settings, message):
    write(saved / "generation_config.json", **settings)
    refused(saved, message)


def test_a_damaged_generation_config(saved):
    (saved / "generation_config.json").write_text("{")
    refused(saved, r"generation_config\.json is damaged: it is not JSON")


@pytest.mark.parametrize("method", ["gptq", "awq", "fp8", "bitsandbytes", "compressed-tensors"])
def test_a_quantised_checkpoint_is_named(saved, method):
    write(saved / "config.json", quantization_config={"quant_method": method, "bits": 4})
    refused(saved, f"quantised .{method}.*use the unquantised checkpoint, or a GGUF file", UnsupportedModelError)


def test_old_bitsandbytes_settings_are_named(saved):
    write(saved / "config.json", quantization_config={"load_in_8bit": True})
    refused(saved, "quantised .bitsandbytes", UnsupportedModelError)


def test_eight_bit_floats_are_named(saved):
    tensors = load_file(saved / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"] = tensors["model.layers.1.mlp.up_proj.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, saved / "model.safetensors", metadata={"format": "pt"})
    refused(saved, r"up_proj\.weight is F8_E4M3, a quantised type", UnsupportedModelError)


def test_pickled_weights_are_never_read(saved):
    (saved / "model.safetensors").rename(saved / "pytorch_model.bin")
    refused(
        saved, r"holds no model\.safetensors, only pytorch_model\.bin, a pickle: .* save_pretrained it as safetensors"
    )


@pytest.mark.parametrize("shard", ["weights.bin", "../model.safetensors", "/etc/passwd", "sub/x.safetensors"])
def test_an_index_leads_to_safetensors_beside_it_only(saved, shard):
    (saved / "model.safetensors").unlink()
    write(saved / "model.safetensors.index.json", weight_map={"model.norm.weight": shard})
    refused(saved, "is no safetensors file beside it")


def test_shards_are_read(tmp_path, text):
    model = small_model()
    model.save_pretrained(tmp_path, max_shard_size="50KB")
    assert not (tmp_path / "model.safetensors").exists()
    torch.testing.assert_close(LLM(tmp_path, device="cpu").logits(text), LLM(model).logits(text))


def test_an_adapter_beside_a_model_is_not_read(saved):
    write(saved / "adapter_config.json", peft_type="LORA", base_model_name_or_path="someone/else")
    refused(saved, "holds an adapter beside a model")


def own_code(saved: Path, file: str, **settings: object) -> Path:
    marker = saved / "ran"
    (saved / "own.py").write_text(f"open({str(marker)!r}, 'w')\nclass Own: ...\n")
    write(saved / file, **settings)
    return marker


def test_a_known_architecture_loads_without_its_own_code(saved, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *asked: pytest.fail("a question was asked"))
    expected = LLM(saved, device="cpu").logits([5, 6, 7])
    classes = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}
    marker = own_code(saved, "config.json", auto_map=classes, attn_implementation="someone/kernels")
    own_code(saved, "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Own", None]})
    llm = LLM(saved, device="cpu")
    assert torch.equal(llm.logits([5, 6, 7]), expected)
    assert llm.tokenizer("hi")["input_ids"]
    assert not marker.exists()


def test_an_unknown_architecture_is_refused_by_its_name_before_its_code(saved, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *asked: pytest.fail("a question was asked"))
    marker = own_code(saved, "config.json", auto_map={"AutoConfig": "own.Own"}, model_type="own")
    refused(saved, "model_type 'own' is unknown; known model types: llama", UnsupportedModelError)
    assert not marker.exists()


def test_a_tokenizer_that_is_code_is_refused(tmp_path):
    place = tmp_path / "model"
    small_model().save_pretrained(place)
    marker = own_code(place, "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Own", None]})
    refused(place, "its tokenizer cannot be loaded: it is code in the directory .* never run")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "the model's name is empty"),
        ("x" * 5000, "is not a directory"),
        ("a\0b", "is neither a directory nor the name of a model"),
        ("spaces in it", "is neither a directory nor the name of a model"),
        ("./nowhere", "is not a directory"),
    ],
)
def test_names_that_are_none(name, message, monkeypatch):
    monkeypatch.setattr(hub, "snapshot_download", lambda *given, **options: pytest.fail("the hub was asked"))
    refused(name, message)


class Unreachable:
    """A hub that does not answer."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def __call__(self, url: str, timeout: float) -> None:
        self.asked.append(timeout)
        raise ConnectionError("[Errno -2] Name or service not known\nand so on")


def test_an_unreachable_hub_is_asked_once_and_shortly(monkeypatch, tmp_path):
    unreachable = Unreachable()
    monkeypatch.setattr(hub, "get_hf_file_metadata", unreachable)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    refused("someone/some-model-never-downloaded", r"nor in the cache, and the hub cannot be reached \(.*not known\)")
    assert unreachable.asked == [hub.PROBE_S]
    with pytest.raises(ModelError, match="the hub cannot be reached"):
        LLM(small_model(), adapter="someone/some-adapter-never-downloaded")


def too_many(url: str, timeout: float) -> None:
    raise HfHubHTTPError("429 Client Error: Too Many Requests", response=MagicMock())


@pytest.mark.parametrize("asked", [Unreachable(), too_many], ids=["unreachable", "too many requests"])
def test_what_was_downloaded_before_needs_no_hub(asked, saved, monkeypatch, tmp_path):
    monkeypatch.setattr(hub, "get_hf_file_metadata", asked)
    monkeypatch.setattr(
        hub, "snapshot_download", lambda source, **options: str(saved) if options["local_files_only"] else None
    )
    assert torch.equal(LLM("someone/model", device="cpu").logits([5, 6]), LLM(saved, device="cpu").logits([5, 6]))


def test_a_hub_that_answers_is_downloaded_from(saved, monkeypatch):
    def download(source: str, *, allow_patterns: list[str], ignore_patterns: list[str] = (), **options: object) -> str:
        assert "*.safetensors" in allow_patterns
        assert not any(pattern.endswith(".bin") or pattern == "*.py" for pattern in allow_patterns)
        return str(saved)

    monkeypatch.setattr(hub, "get_hf_file_metadata", lambda url, timeout: None)
    monkeypatch.setattr(hub, "snapshot_download", download)
    llm = LLM("someone/model", device="cpu")
    assert llm.model.config.name_or_path == "someone/model"


def test_a_model_without_values_and_one_that_is_spread_out():
    refused(
        small_model().to("meta"), r"weights without values, such as model\.embed_tokens\.weight", UnsupportedModelError
    )
    spread = small_model()
    spread.hf_device_map = {"model.layers.0": "cpu", "model.layers.1": "disk"}
    refused(spread, "is spread over cpu, disk; load it on one device", UnsupportedModelError)
