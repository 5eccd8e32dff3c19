"""Loading: real checkpoints on disk, and one clear error for each way that can go wrong."""

import json

import pytest
import torch

from models import CONFIGS, small_model, stock_logits
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM
from winnow.errors import ModelError, UnsupportedModelError


@pytest.fixture
def saved(tmp_path):
    small_model("qwen3").save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss", "phi3-longrope-long", "cohere2"])
def test_a_checkpoint_on_disk_gives_the_same_logits(name, tmp_path, text):
    assert name in CONFIGS
    model = small_model(name)
    model.save_pretrained(tmp_path)
    loaded = LLM(tmp_path, device="cpu")
    torch.testing.assert_close(loaded.logits(text), stock_logits(model, text), rtol=0, atol=1e-5)
    assert loaded.tokenizer is None


def test_tokenizer_and_dtype(saved):
    llm = LLM(str(saved), device="cpu", dtype="bfloat16")
    assert llm.dtype is torch.bfloat16
    assert llm.tokenizer("hi")["input_ids"] == byte_tokenizer()("hi")["input_ids"]


def test_a_missing_directory(tmp_path):
    with pytest.raises(ModelError, match="not a directory"):
        LLM(tmp_path / "nowhere")


def test_a_directory_that_is_no_model(tmp_path):
    with pytest.raises(ModelError, match=r"no config\.json"):
        LLM(tmp_path)


def test_an_unsupported_architecture(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}))
    with pytest.raises(UnsupportedModelError, match="gpt2"):
        LLM(tmp_path)


def test_an_unknown_model_type(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "unheard-of"}))
    with pytest.raises(UnsupportedModelError, match="unheard-of"):
        LLM(tmp_path)


def test_a_truncated_safetensors_file(saved):
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    with pytest.raises(ModelError, match="damaged or cut short"):
        LLM(saved, device="cpu")


def test_a_checkpoint_without_weights(saved):
    (saved / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"holds no model\.safetensors"):
        LLM(saved, device="cpu")


def test_a_checkpoint_that_lacks_a_tensor(saved):
    from safetensors.torch import load_file, save_file

    tensors = load_file(saved / "model.safetensors")
    tensors.pop("model.layers.1.mlp.up_proj.weight")
    save_file(tensors, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="up_proj"):
        LLM(saved, device="cpu")


@pytest.mark.parametrize("device", ["warp", "cuda", "meta"])
def test_a_device_that_is_not_there(device, saved):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ModelError, match=device):
        LLM(saved, device=device)


def test_a_broken_tokenizer(saved):
    (saved / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="tokenizer"):
        LLM(saved, device="cpu")


def test_an_unknown_rope_on_disk(saved):
    config = json.loads((saved / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "spiral", "rope_theta": 10000.0}
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match="spiral"):
        LLM(saved, device="cpu")


def test_config_that_is_not_json(saved):
    (saved / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json"):
        LLM(saved, device="cpu")
