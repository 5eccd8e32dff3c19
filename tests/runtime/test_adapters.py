"""Adapters and what they were trained for: fingerprints, merging, and refusals."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from adapters_for_tests import save_adapter
from models import small_model
from tiny import save_tiny_model, tiny_model
from winnow import LLM
from winnow.errors import MissingExtraError, ModelError, PlanError
from winnow.runtime import adapters
from winnow.runtime.adapters import fingerprint

IDS = [5, 40, 7, 99, 13]
PLAN = "speed(cutoff=1, anchors='bos', decode_from='last:2', self_only=False)"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_adapter(tmp_path_factory.mktemp("adapters") / "plain")


@pytest.fixture(scope="module")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_adapter(tmp_path_factory.mktemp("adapters") / "shallow", PLAN)


def other_model() -> LlamaForCausalLM:
    model = tiny_model()
    model.model.layers[1].mlp.up_proj.weight.data += 0.1
    return model


def test_a_fingerprint_is_of_the_weights_and_not_of_their_dtype() -> None:
    assert fingerprint(tiny_model()) == fingerprint(tiny_model().bfloat16())
    assert fingerprint(tiny_model()) != fingerprint(other_model())


def test_an_adapter_without_a_plan_takes_every_plan(plain: Path) -> None:
    llm = LLM(tiny_model(), adapter=plain)
    assert str(llm.plan) == "full"
    with torch.inference_mode():
        expected = PeftModel.from_pretrained(tiny_model(), str(plain))(torch.tensor([IDS])).logits[0]
    torch.testing.assert_close(llm.logits(IDS), expected, rtol=0, atol=1e-4)
    assert (LLM(tiny_model()).logits(IDS) - expected).abs().max() > 0.1
    llm.logits(IDS, decode_from=3, plan="speed(cutoff=1)")


def test_sums_are_rounded_once(plain: Path) -> None:
    merged, exact = (
        LLM(model, adapter=plain).model.model.layers[0].mlp.up_proj.weight
        for model in (tiny_model().bfloat16(), tiny_model().bfloat16().float())
    )
    assert merged.dtype == torch.bfloat16
    assert torch.equal(merged, exact.bfloat16())


def test_an_adapter_brings_its_plan(shallow: Path) -> None:
    llm = LLM(tiny_model(), adapter=shallow)
    assert str(llm.plan) == PLAN
    own = llm.logits(IDS, decode_from=4)
    # The same computation by another name, and other verbs, are no other plan.
    for plan in ("speed(cutoff=0.5, decode_from='last:2')", "speed(1, decode_from='last:2')"):
        assert torch.equal(llm.logits(IDS, decode_from=4, plan=plan), own)


@pytest.mark.parametrize(
    "plan",
    ["lazyllm", "speed(cutoff=2, decode_from='last:2')", "speed(cutoff=1)", "speed(1, 'none', 'last:2')"],
)
def test_another_way_to_compute_the_prompt_is_refused(plan: str, shallow: Path) -> None:
    llm = LLM(tiny_model(), adapter=shallow)
    for call in (
        lambda: llm.check([IDS], plan=plan),
        lambda: llm.generate([IDS], plan=plan),
        lambda: llm.logits(IDS, decode_from=4, plan=plan),
        lambda: LLM(tiny_model(), adapter=shallow, plan=plan),
    ):
        with pytest.raises(
            PlanError, match=r"shallow was trained for speed\(cutoff=1.*use the plan it was trained for"
        ):
            call()


def test_an_adapter_for_another_model_is_refused(shallow: Path) -> None:
    with pytest.raises(ModelError, match="shallow was trained on tiny, and this model, LlamaForCausalLM, has other"):
        LLM(other_model(), adapter=shallow)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


def _pickle_only(path: Path) -> None:
    (path / "adapter_model.safetensors").unlink()
    (path / "adapter_model.bin").write_bytes(b"never looked at")


def _not_finite(path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(path / "adapter_model.safetensors")
    tensors[min(tensors)][0, 0] = float("inf")
    save_file(tensors, path / "adapter_model.safetensors")


def _set(path: Path, **settings: Any) -> None:
    file = path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "winnow.json").write_text("{"), r"winnow\.json is damaged"),
        (lambda path: (path / "winnow.json").write_text("{}"), r"winnow\.json is damaged"),
        (lambda path: (path / "winnow.json").write_text('{"plan": "fast", "base": {}}'), r"winnow\.json is damaged"),
        (lambda path: (path / "adapter_config.json").unlink(), r"holds no adapter: there is no adapter_config\.json"),
        (lambda path: (path / "adapter_config.json").write_text("{}"), "cannot be loaded into this model"),
        (lambda path: _cut(path / "adapter_model.safetensors"), "cannot be loaded into this model"),
        (lambda path: (path / "adapter_model.safetensors").unlink(), r"holds no adapter_model\.safetensors; download"),
        (lambda path: _pickle_only(path), r"only adapter_model\.bin, a pickle: .* never read"),
        (lambda path: _not_finite(path), r"the adapter adapter: the weight \S+ holds values that are not finite"),
        (lambda path: _set(path, megatron_config={"a": 1}, megatron_core="os"), "is for Megatron"),
        (lambda path: _set(path, r="eight"), "cannot be loaded into this model"),
        (lambda path: _set(path, target_modules=5), "cannot be loaded into this model"),
    ],
)
def test_a_damaged_adapter_is_refused(
    damage: Callable[[Path], Any], message: str, shallow: Path, tmp_path: Path
) -> None:
    damage(Path(shutil.copytree(shallow, tmp_path / "adapter")))
    with pytest.raises(ModelError, match=message):
        LLM(tiny_model(), adapter=tmp_path / "adapter")


def test_an_adapter_that_lacks_tensors_is_refused_and_leaves_the_model_whole(plain: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(plain, tmp_path / "adapter")) / "adapter_model.safetensors"
    tensors = load_file(path)
    tensors.pop(min(tensors))
    save_file(tensors, path)
    model = tiny_model()
    with pytest.raises(ModelError, match="lacks 1 tensors, such as"):
        LLM(model, adapter=tmp_path / "adapter")
    assert torch.equal(LLM(model).logits(IDS), LLM(tiny_model()).logits(IDS))


def test_what_is_refused_leaves_the_caller_s_model_whole(plain: Path, shallow: Path, tmp_path: Path) -> None:
    """Also one of another width, of which peft has put in a part."""
    model, whole = tiny_model(), LLM(tiny_model()).logits(IDS)
    for plan, adapter in (("lazyllm(layers=[9], keep=0.5)", plain), ("speed(cutoff=0.75)", shallow)):
        with pytest.raises(PlanError):
            LLM(model, adapter=adapter, plan=plan)
    path = Path(shutil.copytree(plain, tmp_path / "wide")) / "adapter_model.safetensors"
    save_file({name: torch.cat((each, each), -1).contiguous() for name, each in load_file(path).items()}, path)
    with pytest.raises(ModelError, match="cannot be loaded into this model"):
        LLM(model, adapter=tmp_path / "wide")
    assert not [name for name, _ in model.named_parameters() if "lora" in name]
    assert torch.equal(LLM(model).logits(IDS), whole)
    LLM(model, adapter=plain)
    with pytest.raises(ModelError, match=r"has the adapter .* already; load the model anew"):
        LLM(model, adapter=plain)


def test_an_adapter_of_a_layer_that_is_the_embedding_too_is_refused(tmp_path: Path) -> None:
    model = small_model("cohere2")
    adapted = get_peft_model(small_model("cohere2"), LoraConfig(r=2, target_modules=["q_proj", "lm_head"]))
    adapted.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    before = model.get_input_embeddings().weight.clone()
    with pytest.raises(ModelError, match="in this model these are one tensor"):
        LLM(model, adapter=tmp_path / "adapter")
    assert torch.equal(model.get_input_embeddings().weight, before)
    assert not [name for name, _ in model.named_parameters() if "lora" in name]


@pytest.mark.parametrize("source", ["./nowhere", "a/b/c"])
def test_a_missing_adapter_is_refused(source: str) -> None:
    with pytest.raises(ModelError, match="is not a directory; give an adapter's directory"):
        LLM(tiny_model(), adapter=source)


def test_adapters_need_an_extra(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "find_spec", lambda name: None if name == "peft" else object())
    with pytest.raises(MissingExtraError, match="need peft; install winnow with its extra 'train'"):
        LLM(tiny_model(), adapter=plain)


def test_a_trained_model_directory_is_checked_too(tmp_path: Path) -> None:
    directory = save_tiny_model(tmp_path / "shallow")
    record = {"plan": PLAN, "base": {"name": "tiny", "fingerprint": "of the model it was made from"}}
    (directory / "winnow.json").write_text(json.dumps(record), encoding="utf-8")
    llm = LLM(directory)
    assert str(llm.plan) == PLAN
    with pytest.raises(PlanError, match="shallow was trained for"):
        llm.check([IDS], plan="lazyllm")
    llm.check([IDS], plan="full")  # what plans are compared with


def test_a_trained_model_on_the_hub_is_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "winnow.json").write_text(json.dumps({"plan": PLAN, "base": {"name": "tiny", "fingerprint": ""}}))
    monkeypatch.setattr(adapters, "cached", {"someone/shallow": tmp_path, "someone/plain": tmp_path / "none"}.get)
    found = adapters.trained_in("someone/shallow")
    assert found is not None
    assert (found.name, str(found.plan)) == ("shallow", PLAN)
    assert adapters.trained_in("someone/plain") is None
    assert adapters.trained_in("someone/never downloaded") is None


def test_what_was_trained_at_full_depth_takes_every_plan(tmp_path: Path) -> None:
    llm = LLM(tiny_model(), adapter=save_adapter(tmp_path / "full", "full"))
    llm.check([IDS], plan="speed(cutoff=1)")
    assert str(llm.plan) == "full"
