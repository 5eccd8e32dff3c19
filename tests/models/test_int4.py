"""weights="int4", "packed" and "dense" of models and files, adapters beside packed weights, and what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as T
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM, PreTrainedModel

from gguf_models import SMALL, write_model
from models import small_model, stock_logits
from packed_models import expanded
from winnow import LLM
from winnow.errors import InputError, ModelError
from winnow.learn.sft import train_speed
from winnow.models.packed import PackedLinear, is_packed, packed_modules
from winnow.models.report import weights_report
from winnow.policies.compute.speed import Speed
from winnow.runtime import loading
from winnow.runtime.adapters import fingerprint
from winnow.runtime.loading import move

IDS = list(range(3, 40))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("file") / "m.gguf", "llama", lambda name: T.Q4_1, shape=SMALL).path


@pytest.mark.parametrize("name", ["llama", "gemma2", "cohere2", "phi3", "qwen3_moe"])
def test_a_loaded_model_is_rounded_in_a_copy(name: str) -> None:
    model = small_model(name)
    names, before = [n for n, _ in model.named_modules()], stock_logits(model, IDS)
    llm = LLM(model, weights="int4")
    assert is_packed(llm.model)
    assert not is_packed(model)
    assert [n for n, _ in model.named_modules()] == names
    assert torch.equal(stock_logits(model, IDS), before)
    assert llm.dense() is model
    stands_for = expanded(llm.model, small_model(name))
    wanted = stock_logits(stands_for, IDS)
    assert (wanted - before).abs().max() > 1e-3
    for got in (llm.logits(IDS), stock_logits(llm.model, IDS)):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)
    assert fingerprint(llm.model) == fingerprint(stands_for)


def test_a_directory_is_rounded(tmp_path: Path) -> None:
    small_model("llama").save_pretrained(tmp_path)
    llm = LLM(tmp_path, device="cpu", weights="int4")
    kinds = {name: module.packed.bits for name, module in packed_modules(llm.model)}
    assert {name for name, bits in kinds.items() if bits == 8} == {"model.embed_tokens", "lm_head"}
    torch.testing.assert_close(
        llm.logits(IDS), LLM(small_model("llama"), weights="int4").logits(IDS), rtol=0, atol=1e-5
    )
    torch.testing.assert_close(stock_logits(llm.dense(), IDS), stock_logits(small_model("llama"), IDS))
    with pytest.raises(ModelError, match="holds no quantised weights to keep packed; weights='int4'"):
        LLM(tmp_path, device="cpu", weights="packed")


def test_what_cannot_be(file: Path) -> None:
    with pytest.raises(ModelError, match="quantised already"):
        LLM(file, device="cpu", weights="int4")
    packed = LLM(file, device="cpu").model
    with pytest.raises(ModelError, match="quantised already"):
        LLM(packed, weights="int4")
    with pytest.raises(ModelError, match="holds no quantised weights"):
        LLM(small_model("llama"), weights="packed")
    with pytest.raises(InputError, match="weights='int3' is unknown"):
        LLM(file, weights="int3")  # type: ignore[arg-type]
    assert is_packed(LLM(packed, weights="packed").model)
    with pytest.raises(ModelError, match="holds packed weights; load it anew, with weights='dense'"):
        LLM(packed, weights="dense")


def test_dense_of_a_file_trains_and_has_the_same_fingerprint(file: Path) -> None:
    packed, dense = LLM(file, device="cpu"), LLM(file, device="cpu", weights="dense")
    assert not is_packed(dense.model)
    assert all(parameter.requires_grad for parameter in dense.model.parameters())
    assert fingerprint(packed.model) == fingerprint(dense.model) == fingerprint(packed.dense())
    assert not is_packed(packed.dense())


def test_gradients_are_refused(file: Path) -> None:
    model = LLM(file, device="cpu", dtype="float32").model
    hidden = torch.zeros(1, 3, model.config.hidden_size, requires_grad=True)
    with pytest.raises(ModelError, match="no gradients; load the model with weights='dense'"):
        model(inputs_embeds=hidden)


def test_training_is_refused_before_anything_is_read(file: Path, tmp_path: Path) -> None:
    llm = LLM(file, device="cpu")
    with pytest.raises(ModelError, match="load the model with weights='dense' to train it"):
        train_speed(llm.model, llm.tokenizer, tmp_path / "no data", tmp_path / "out", Speed(cutoff=1))
    assert not (tmp_path / "out").exists()


def save_adapter(model: PreTrainedModel, directory: Path, **settings: Any) -> PreTrainedModel:
    """Save a random adapter as peft does; returns the model with it merged."""
    config = LoraConfig(**{"r": 4, "lora_alpha": 12, "target_modules": ["q_proj", "v_proj", "down_proj"]} | settings)
    adapted = get_peft_model(model, config)
    source = torch.Generator().manual_seed(5)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=source)
    adapted.save_pretrained(directory)
    return adapted.merge_and_unload()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_rslora": True},
        {"alpha_pattern": {"v_proj": 40}, "rank_pattern": {"down_proj": 7}},
        {"use_rslora": True, "alpha_pattern": {r"layers\.1\..*q_proj": 3}},
        {"target_modules": "all-linear"},
        {"layers_to_transform": [1]},
    ],
    ids=str,
)
def test_an_adapter_beside_packed_weights_is_the_merged_one(settings: dict[str, Any], tmp_path: Path) -> None:
    packed = LLM(small_model("llama"), weights="int4")
    merged = save_adapter(expanded(packed.model, small_model("llama")), tmp_path, **settings)
    llm = LLM(small_model("llama"), weights="int4", adapter=tmp_path)
    wanted = stock_logits(merged, IDS)
    assert (wanted - packed.logits(IDS)).abs().max() > 1e-2
    for got in (llm.logits(IDS), stock_logits(llm.model, IDS)):
        torch.testing.assert_close(got, wanted, rtol=0, atol=2e-4)


def test_an_adapter_of_no_scale_changes_nothing(tmp_path: Path) -> None:
    packed = LLM(small_model("llama"), weights="int4")
    merged = save_adapter(expanded(packed.model, small_model("llama")), tmp_path, lora_alpha=0)
    got = LLM(small_model("llama"), weights="int4", adapter=tmp_path).logits(IDS)
    for wanted in (packed.logits(IDS), stock_logits(merged, IDS)):
        torch.testing.assert_close(got, wanted, rtol=0, atol=2e-4)


def test_what_a_file_has_as_floats_gets_the_sum(tmp_path: Path) -> None:
    """Matrices of one file may be of several types, and an adapter is for all of them."""
    kinds = {"attn_v": T.F16, "ffn_down": T.BF16}
    file = write_model(tmp_path / "m.gguf", "llama", lambda name: kinds.get(name.split(".")[-2], T.Q8_0)).path
    wanted = stock_logits(save_adapter(LLM(file, weights="dense", dtype="float32").model, tmp_path / "adapter"), IDS)
    plain = LLM(file, weights="packed", dtype="float32").logits(IDS)
    llm = LLM(file, weights="packed", dtype="float32", adapter=tmp_path / "adapter")
    assert (wanted - plain).abs().max() > 0.1
    torch.testing.assert_close(llm.logits(IDS), wanted, rtol=0, atol=2e-4)
    kept = {type(llm.model.model.layers[0].self_attn.get_submodule(f"{name}_proj")) for name in "qv"}
    assert kept == {PackedLinear, torch.nn.Linear}


def test_a_users_model_stays_as_it_is_where_the_rounded_copy_shares_its_floats(tmp_path: Path) -> None:
    """Columns that are no multiple of 32 stay floats, in the memory of the model that was given."""
    config = small_model("llama").config
    config.intermediate_size = 72
    model = LlamaForCausalLM(config).eval()
    save_adapter(LlamaForCausalLM(config), tmp_path)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    llm = LLM(model, weights="int4", adapter=tmp_path)
    assert isinstance(llm.model.model.layers[0].mlp.down_proj, torch.nn.Linear)
    assert not torch.equal(
        llm.model.model.layers[0].mlp.down_proj.weight, before["model.layers.0.mlp.down_proj.weight"]
    )
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_a_fingerprint_names_the_adapter_whether_it_is_merged_or_beside(file: Path, tmp_path: Path) -> None:
    save_adapter(LLM(file, device="cpu", weights="dense").model, tmp_path / "one")
    save_adapter(LLM(file, device="cpu", weights="dense").model, tmp_path / "scaled", lora_alpha=13)

    def of(adapter: Path | None, **how: Any) -> str:
        return fingerprint(LLM(file, device="cpu", adapter=adapter, **how).model)

    beside, merged = of(tmp_path / "one"), of(tmp_path / "one", weights="dense")
    assert beside == merged == of(tmp_path / "one", weights="dense", dtype="float32")
    assert len({beside, of(None), of(tmp_path / "scaled")}) == 3
    dense = LLM(file, device="cpu", adapter=tmp_path / "one", weights="dense").model
    assert fingerprint(LLM(dense, weights="int4").model) not in (beside, of(None))
    dense.model.layers[0].mlp.up_proj.weight.data += 0.1  # trained further
    assert fingerprint(dense) not in (beside, of(None))


def test_a_fingerprint_is_of_an_adapters_values_rounded_and_not_of_its_file(file: Path, tmp_path: Path) -> None:
    save_adapter(LLM(file, device="cpu", weights="dense").model, tmp_path)
    weights = tmp_path / "adapter_model.safetensors"
    before, tensors = fingerprint(LLM(file, device="cpu", adapter=tmp_path).model), load_file(weights)
    save_file({name: each.bfloat16() for name, each in tensors.items()}, weights, metadata={"format": "pt", "a": "b"})
    assert fingerprint(LLM(file, device="cpu", adapter=tmp_path).model) == before
    save_file({name: -each for name, each in tensors.items()}, weights, metadata={"format": "pt"})
    assert fingerprint(LLM(file, device="cpu", adapter=tmp_path).model) != before


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"use_dora": True}, "sets use_dora"),
        ({"lora_bias": True}, "sets lora_bias"),
        ({"bias": "lora_only"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "sets modules_to_save"),
        ({"target_modules": ["embed_tokens"]}, "embed_tokens"),
        ({"trainable_token_indices": [1, 2]}, "trainable_token_indices"),
        ({"init_lora_weights": "olora"}, "was begun with olora, which changes the weights beneath it"),
        ({"init_lora_weights": "pissa"}, "was begun with pissa"),
    ],
    ids=str,
)
def test_other_adapters_are_refused(settings: dict[str, Any], why: str, tmp_path: Path) -> None:
    save_adapter(small_model("qwen2"), tmp_path, **{"target_modules": ["q_proj"]} | settings)
    with pytest.raises(ModelError, match=rf"{why}.*weights='dense'") as refused:
        LLM(small_model("qwen2"), weights="int4", adapter=tmp_path)
    assert "\n" not in str(refused.value)


def test_an_adapter_that_cannot_be_merged_leaves_the_model_whole(tmp_path: Path) -> None:
    """Nor is it put beside packed weights: it acts behind certain tokens alone."""
    options: dict[str, Any] = {"alora_invocation_tokens": [5, 6], "task_type": "CAUSAL_LM"}
    get_peft_model(small_model("llama"), LoraConfig(target_modules=["q_proj"], **options)).save_pretrained(tmp_path)
    model = small_model("llama")
    with pytest.raises(ModelError, match=r"sets alora_invocation_tokens.*weights='dense'"):
        LLM(model, weights="int4", adapter=tmp_path)
    with pytest.raises(ModelError, match="the adapter cannot be merged: aLoRA does not support merging"):
        LLM(model, adapter=tmp_path)
    assert type(model.model.layers[0].self_attn.q_proj) is torch.nn.Linear


def test_what_is_shared_is_shared_after_a_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by `.to("cuda")`, of which each module makes a copy of its own."""
    model = LLM(small_model("cohere2"), weights="int4").model
    known, size = fingerprint(model), weights_report(model).bytes

    def moved(self: torch.nn.Module, **to: Any) -> torch.nn.Module:
        return self._apply(lambda each: each.clone())

    monkeypatch.setattr(torch.nn.Module, "to", moved)
    move(model, torch.device("cpu"), None)
    assert fingerprint(model) == known
    assert weights_report(model).bytes == size
    assert model.lm_head.packed is model.model.embed_tokens.packed


def test_an_adapter_is_cast_with_the_packed_weights_that_it_stands_beside(tmp_path: Path) -> None:
    save_adapter(small_model("llama"), tmp_path)
    llm = LLM(small_model("llama"), weights="int4", adapter=tmp_path)
    expected = llm.logits(IDS)
    cast = LLM(llm.model, dtype="bfloat16")
    assert {module.dtype for _, module in packed_modules(cast.model) if isinstance(module, PackedLinear)} == {
        torch.bfloat16
    }
    torch.testing.assert_close(cast.logits(IDS), expected, rtol=0, atol=0.2)


def test_int4_without_kernels_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loading, "why_slow", lambda packed: "no kernel here")
    small_model("llama").save_pretrained(tmp_path)
    for model in (tmp_path, small_model("llama")):
        caplog.clear()
        LLM(model, device="cpu", weights="int4")
        assert [record.getMessage().endswith("which is slow: no kernel here") for record in caplog.records] == [True]


def test_an_adapter_of_another_shape_is_refused(tmp_path: Path) -> None:
    save_adapter(small_model("mistral"), tmp_path)
    with pytest.raises(ModelError, match=re.escape("do not fit a layer of [64, 64]")):
        LLM(small_model("llama"), weights="int4", adapter=tmp_path)
