"""What is said of a model from headers alone is what loading it makes."""

import json
import shutil

import pytest
import torch
from gguf import GGMLQuantizationType as T
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from gguf_models import EXPERT_MODELS, SMALL, WIDE, write_model
from models import CONFIGS, small_model
from winnow import LLM
from winnow.errors import ModelError, UnsupportedModelError
from winnow.models.gguf.load import import_gguf
from winnow.models.report import weights_report
from winnow.runtime import loading
from winnow.runtime.outline import outline_of


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The user's cache folders."""
    monkeypatch.setenv("WINNOW_CACHE", str(tmp_path / "cache"))


def same(source, weights="auto", dtype=None):
    """The outline is of what is loaded: bytes, those of them that are packed, and the shape."""
    made = outline_of(source, dtype=dtype, weights=weights)
    llm = LLM(source, device="cpu", weights=weights, dtype=dtype)
    report = weights_report(llm.model)
    assert (made.weights, sum(made.packed.values())) == (report.bytes, report.packed_bytes)
    assert made.shape == llm.decoder.shape
    assert made.dtype == llm.dtype
    assert made.loading >= made.weights
    assert (made.tokenizer is None) == (llm.tokenizer is None)
    return made


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize(("weights", "dtype"), [("auto", None), ("int4", None), ("dense", "bfloat16")])
def test_a_directory(family, weights, dtype, tmp_path):
    small_model(family).save_pretrained(tmp_path / "model")
    same(tmp_path / "model", weights, dtype)


@pytest.mark.parametrize("type", [T.Q4_0, T.Q4_1, T.Q5_1, T.Q8_0, T.Q2_K, T.Q3_K, T.Q4_K, T.Q6_K, T.F16, T.TQ1_0])
def test_a_file_and_what_it_is_converted_to(type, tmp_path):
    shape = WIDE if type.name.endswith("_K") or type == T.TQ1_0 else SMALL
    file = write_model(tmp_path / "m.gguf", "llama", lambda name: type, shape=shape).path
    before = same(file)
    assert same(file, "dense").packed == {}
    import_gguf(file, tmp_path / "made")
    after = same(tmp_path / "made")
    assert (after.packed, after.weights) == (before.packed, before.weights)
    same(tmp_path / "made", "dense", "float32")
    if before.packed:
        same(file, "packed")
        with pytest.raises(ModelError, match="is quantised already"):
            outline_of(file, dtype=None, weights="int4")
    else:
        same(file, "int4")


@pytest.mark.parametrize("architecture", ["qwen3", "gemma3", *EXPERT_MODELS])
def test_a_file_of_another_architecture(architecture, tmp_path):
    file = write_model(tmp_path / "m.gguf", architecture, lambda name: T.Q8_0, tied=architecture == "gemma3").path
    same(file)


def test_a_model_that_nobody_could_load_here(tmp_path):
    """A hundred and forty gigabytes of nothing: a file with a hole behind its header."""
    config = LlamaConfig(
        hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8,
        vocab_size=128256, max_position_embeddings=131072, dtype="bfloat16", architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        weights = LlamaForCausalLM(config).state_dict()
    header, end = {}, 0
    for name, weight in weights.items():
        begin, end = end, end + 2 * weight.numel()
        header[name] = {"dtype": "BF16", "shape": list(weight.shape), "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + end)
    made = outline_of(tmp_path, dtype=None, weights="auto")
    assert (made.weights, made.dtype, made.tokenizer) == (end, torch.bfloat16, None)
    assert made.shape.unit_bytes * made.shape.kv_heads * made.shape.layers == 320 * 2**10
    rounded = outline_of(tmp_path, dtype=None, weights="int4")
    assert 0.3 < rounded.weights / end < 0.33  # embedding and head have 8 bits
    assert rounded.loading > end + rounded.weights / 2


def test_no_weight_is_read(tmp_path, monkeypatch):
    small_model("llama").save_pretrained(tmp_path / "model")
    for place, name in ((loading, "check_finite"), (PreTrainedModel, "from_pretrained")):
        monkeypatch.setattr(place, name, lambda *given, **named: pytest.fail("a weight was read"))
    assert outline_of(tmp_path / "model", dtype=None, weights="auto").weights > 0


def test_what_cannot_be_loaded_is_refused_alike(tmp_path):
    small_model("llama").save_pretrained(tmp_path / "model")
    for weights, message in (("packed", "holds no quantised weights"), ("auto", "says 9 layers")):
        if weights == "auto":
            path = tmp_path / "model" / "config.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 9, "layer_types": None}))
        for made in (lambda w: outline_of(tmp_path / "model", dtype=None, weights=w),
                     lambda w: LLM(tmp_path / "model", device="cpu", weights=w)):  # fmt: skip
            with pytest.raises(ModelError, match=message):
                made(weights)
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(ModelError, match="is not a directory"):
        outline_of(tmp_path / "model", dtype=None, weights="auto")
    with pytest.raises(ModelError, match="neither a directory nor in the hub's cache"):
        outline_of("nobody/nothing", dtype=None, weights="auto")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(UnsupportedModelError, match="mamba"):
        outline_of(tmp_path / "other", dtype=None, weights="auto")
    with pytest.raises(ModelError, match="dtype 'int3' is unknown"):
        outline_of("needle", dtype="int3", weights="auto")
