"""Weights of GGUF files of every type: what they stand for, and that they compute the same packed as dense."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from torch import Tensor
from transformers import AutoModelForCausalLM

from covering import covering, marked
from forked import python, run
from gguf_files import TOKENS
from gguf_models import EXPERT_MODELS, SCALES, SMALL, WRITABLE, Written, shape_for, write_model
from models import stock_logits
from winnow import LLM, SamplingParams
from winnow.errors import ModelError
from winnow.kernels import launch, packed
from winnow.models.gguf.blocks import PACKABLE
from winnow.models.packed import packed_modules
from winnow.runtime.adapters import fingerprint

T = GGMLQuantizationType
TYPES = (*WRITABLE, *SCALES, T.IQ1_M, T.NVFP4, T.F32, T.F16, T.BF16)
EXACT = {T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.IQ4_NL, T.TQ2_0, T.F32, T.F16, T.BF16}
FAMILIES = [("llama", True), ("llama", False), ("qwen3", True), ("qwen3", False), ("gemma3", True)]


def q4_k_m(name: str) -> GGMLQuantizationType:
    """As llama.cpp mixes them: some values and the ends in six bits."""
    better = name in ("token_embd.weight", "output.weight", "blk.0.attn_v.weight", "blk.1.ffn_down.weight")
    return T.Q6_K if better else T.Q4_K


def smollm(name: str) -> GGMLQuantizationType:
    return T.Q8_0 if name in ("token_embd.weight", "output.weight") else T.Q4_1


MIXTURES = {"q4_k_m": (q4_k_m, T.Q4_K), "q4_1": (smollm, T.Q4_1)}


PRODUCT = [(*family, mixture) for family in FAMILIES for mixture in MIXTURES]


@pytest.fixture(scope="module", params=marked([(case,) for case in PRODUCT], [(c,) for c in covering(PRODUCT, 1)]))
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    architecture, tied, mixture = request.param
    choose, widest = MIXTURES[mixture]
    path = tmp_path_factory.mktemp("mixture") / "model.gguf"
    return write_model(path, architecture, choose, tied=tied, shape=shape_for(widest))


def ids_of(count: int, seed: int = 0) -> list[int]:
    return torch.randint(2, len(TOKENS), (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def assert_near(got: Tensor, wanted: Tensor, share: float = 1e-4) -> None:
    """Logits in float32; share: of the largest."""
    torch.testing.assert_close(got, wanted, rtol=0, atol=share * float(wanted.abs().max()))


def check_weights(written: Written, exact: bool) -> None:
    """Every tensor is what gguf makes of it; not exact: but for the rounding of scales, relative to a row."""
    found = LLM(written.path, device="cpu", dtype="float32", weights="dense").model.state_dict()
    assert found.keys() == written.weights.keys()
    for name, wanted in written.weights.items():
        off = (found[name] - wanted).abs()
        largest = wanted.abs().amax(-1, keepdim=True)
        assert (off == 0).all() if exact else (off <= 2**-8 * largest).all(), (name, float((off / largest).max()))


@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_every_type_stands_for_what_gguf_says(type: GGMLQuantizationType, tmp_path: Path) -> None:
    written = write_model(tmp_path / "m.gguf", "llama", lambda name: type, tied=False, shape=shape_for(type))
    check_weights(written, exact=type in EXACT)
    llm = LLM(written.path, device="cpu", dtype="float32")
    held = sum(module.packed.nbytes for _, module in packed_modules(llm.model))
    assert bool(held) == (type in PACKABLE)
    dense = LLM(written.path, device="cpu", dtype="float32", weights="dense")
    ids = ids_of(40)
    assert_near(llm.logits(ids), dense.logits(ids))


def test_scales_are_rounded_and_nothing_else(tmp_path: Path) -> None:
    """K-quants: a value is off by at most the rounding to float16 of its group's scale and minimum."""
    for type in (T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K, T.IQ4_XS):
        written = write_model(tmp_path / f"{type.name}.gguf", "llama", lambda name, t=type: t, shape=shape_for(type))
        found = LLM(written.path, device="cpu", dtype="float32", weights="dense").model.state_dict()
        name, group = "model.layers.0.mlp.down_proj.weight", PACKABLE[type].group
        wanted = written.weights[name].unflatten(1, (-1, group))
        off = (found[name].unflatten(1, (-1, group)) - wanted).abs().amax(2)
        # A minimum and a scale may be larger than what is left of them, so they are bounded by the reach of the codes.
        reach = wanted.abs().amax(2) + (wanted.amax(2) - wanted.amin(2))
        assert (off <= 2**-11 * 2 * reach + 1e-7).all(), type.name


def test_mixtures_stand_for_what_gguf_says(written: Written) -> None:
    check_weights(written, exact=False)


def test_a_mixture_is_the_model_that_transformers_loads(written: Written) -> None:
    dense = LLM(written.path, device="cpu", dtype="float32", weights="dense")
    theirs = AutoModelForCausalLM.from_pretrained(
        str(written.path.parent),
        gguf_file=written.path.name,
        dtype=torch.float32,
        config=copy.deepcopy(dense.model.config),  # its own reading of the header drops the size of heads
    ).eval()
    ids = ids_of(40)
    assert_near(dense.logits(ids), stock_logits(theirs, ids), 5e-3)


@pytest.mark.parametrize("architecture", EXPERT_MODELS)
@pytest.mark.parametrize("type", [T.Q8_0, T.MXFP4], ids=lambda type: type.name)
def test_experts_are_where_the_model_has_them(type: GGMLQuantizationType, architecture: str, tmp_path: Path) -> None:
    """Stacked in the file, gate and up apart, and of one of the two turned."""
    written = write_model(tmp_path / "m.gguf", architecture, lambda name: type, tied=False, shape=shape_for(type))
    check_weights(written, exact=False)
    llm = LLM(written.path, device="cpu", dtype="float32")
    assert list(packed_modules(llm.model)) or type not in PACKABLE
    ids = ids_of(40)
    assert_near(llm.logits(ids), stock_logits(llm.dense(), ids))


@pytest.mark.parametrize("architecture", EXPERT_MODELS)
def test_a_file_that_lacks_experts_or_has_others_is_refused(architecture: str, tmp_path: Path) -> None:
    def refused(message: str, **changed: Any) -> None:
        written = write_model(tmp_path / "m.gguf", architecture, lambda name: T.F32, **changed)
        with pytest.raises(ModelError, match=message):
            LLM(written.path, device="cpu")

    for lacking in ("blk.1.ffn_up_exps.weight", "blk.0.ffn_down_exps.weight"):
        refused(rf"lacks 1 tensors that the model needs, such as {lacking}", lacking=lacking)
    keys = {f"{architecture}.expert_feed_forward_length": SMALL.ffn // 2}
    refused(r"blk\.\d\.ffn_\w+_exps\.weight has the shape \[4, .* where the configuration says \[4, ", keys=keys)


def test_packed_is_dense(written: Written) -> None:
    """In every count of rows, driven in chunks and natively."""
    packed_llm = LLM(written.path, device="cpu", dtype="float32")
    dense = LLM(written.path, device="cpu", dtype="float32", weights="dense")
    ids = ids_of(64)
    wanted = stock_logits(dense.model, ids)
    assert_near(stock_logits(packed_llm.model, ids), wanted)
    for chunk in (1, 2, 5, 23, 64):
        packed_llm.prefill_chunk = chunk
        assert_near(packed_llm.logits(ids), wanted)
    packed_llm.prefill_chunk = 16
    assert_near(packed_llm.logits(ids, decode_from=30), wanted[29:])
    prompts = [ids[: 9 + 5 * i] for i in range(5)]
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    answers = [llm.generate(prompts, params) for llm in (packed_llm, dense)]
    assert [c.token_ids for c in answers[0]] == [c.token_ids for c in answers[1]]
    assert fingerprint(packed_llm.model) == fingerprint(dense.model)
    assert stock_logits(packed_llm.dense(), ids).allclose(wanted, rtol=0, atol=1e-5)


def test_packed_in_bfloat16_is_as_near_as_dense_in_bfloat16(written: Written) -> None:
    ids = ids_of(64)
    exact = LLM(written.path, device="cpu", dtype="float32", weights="dense").logits(ids)
    off = {}
    for weights in ("packed", "dense"):
        llm = LLM(written.path, device="cpu", weights=weights)
        assert llm.dtype == torch.bfloat16
        for chunk in (1, 64):
            llm.prefill_chunk = chunk
            off[weights, chunk] = float((llm.logits(ids) - exact).square().mean().sqrt())
    for chunk in (1, 64):
        assert off["packed", chunk] <= 1.3 * off["dense", chunk]


def test_without_numba_it_is_the_same_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written = write_model(tmp_path / "m.gguf", "llama", smollm)
    wanted = LLM(written.path, device="cpu", dtype="float32").logits(ids := ids_of(20))
    packed.few_rows.cache_clear()
    for module in (launch, packed):
        monkeypatch.setattr(module, "numba_missing", lambda: "Numba does not import (a test)")
    caplog.clear()
    llm = LLM(written.path, device="cpu", dtype="float32")
    assert_near(llm.logits(ids), wanted)
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "packed weights are expanded to floats in every step, which is slow: Numba does not import (a test)"
    ]
    packed.few_rows.cache_clear()


LAYOUT = """
import torch
from kernels.test_packed_weights import ALL, random_weight
from winnow.kernels.packed import expand, linear
for kind, minima in ALL:
    weight, values = random_weight(kind, minima, 33, 576)
    assert torch.equal(expand(weight, torch.float32), values.float())
    x = torch.randn(5, 576).bfloat16()
    off = linear(x, weight, few=8).double() - x.double() @ values.T
    assert off.abs().max() < 4e-3 * (x.double().abs() @ values.abs().T).max()
"""
ENTRY = """
import torch
from winnow import LLM
llm = LLM({!r}, device="cpu", dtype="float32")
ids = torch.load({!r})
for chunk in (1, 3, 64):
    llm.prefill_chunk = chunk
    torch.testing.assert_close(llm.logits(ids["ids"]), ids["logits"], rtol=0, atol=1e-4)
"""


@pytest.mark.parametrize("capability", [pytest.param("avx2", marks=pytest.mark.full), "default"])
def test_other_cpus_read_the_same_layout_and_the_same_entry(capability: str, tmp_path: Path) -> None:
    written = write_model(tmp_path / "m.gguf", "llama", q4_k_m, shape=shape_for(T.Q4_K))
    ids, known = ids_of(20), str(tmp_path / "x.pt")
    torch.save({"ids": ids, "logits": LLM(written.path, device="cpu", dtype="float32").logits(ids)}, known)
    parts = [["-c", LAYOUT], ["-c", ENTRY.format(str(written.path), known)]]
    for done in run(parts, python("import torch, numba, pytest", ATEN_CPU_CAPABILITY=capability)):
        assert done.code == 0, done.err


@pytest.mark.full
def test_kernels_for_another_cpu_read_the_same_layout(tmp_path: Path) -> None:
    """Compiled for it."""
    other = python("import torch", NUMBA_CPU_NAME="x86-64-v3", NUMBA_CACHE_DIR=str(tmp_path))
    [done] = run([["-c", LAYOUT]], other)
    assert done.code == 0, done.err


def test_every_type_with_a_packed_form_is_tested() -> None:
    assert set(PACKABLE) <= set(TYPES)
