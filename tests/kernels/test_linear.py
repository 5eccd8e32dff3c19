"""The linear kernel against its definition, and the switch of a model's layers."""

import platform
import threading
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import forked
from winnow.kernels.launch import match_torch_threads
from winnow.kernels.linear import (
    FastLinear,
    available,
    linear,
    linear_reference,
    many,
    multiplied_in,
    product,
    use_fast_linears,
)

pytest.importorskip("numba")

ATTENTION = ("attend.cpu_decode", "attend.cpu_prefill")


def random_layer(rows: int, outs: int, ins: int, dtype: torch.dtype, bias: bool):
    generator = torch.Generator().manual_seed(0)
    x, weight, shift = (torch.randn(*s, generator=generator).to(dtype) for s in ((rows, ins), (outs, ins), (outs,)))
    return x, weight, shift if bias else None


@pytest.mark.threads
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ins", [32, 96, 128, 160, 1024])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 16])
def test_the_kernel_loses_no_more_than_stock_torch(rows, ins, dtype, bias):
    for outs in (1, 7, 130):
        x, weight, shift = random_layer(rows, outs, ins, dtype, bias)
        exact = linear_reference(x.double().float(), weight.float(), None if shift is None else shift.float())
        stock = (F.linear(x, weight, shift).float() - exact).abs().max()
        assert (linear(x, weight, shift).float() - exact).abs().max() <= 2 * stock + 1e-5 * ins**0.5


@pytest.mark.threads
def test_every_output_is_written(monkeypatch):
    new_empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **k: new_empty(*a, **k).fill_(float("nan")))
    for outs in (1, 3, 64, 1001):
        x, weight, _ = random_layer(3, outs, 64, torch.float32, False)
        assert linear(x, weight).isfinite().all()


def test_leading_dimensions_and_views_are_kept():
    x, weight, _ = random_layer(6, 10, 64, torch.float32, False)
    view = x.view(2, 3, 64).transpose(0, 1)
    torch.testing.assert_close(linear(view, weight), F.linear(view, weight))


@pytest.mark.parametrize(
    ("x", "weight", "word"),
    [
        (torch.zeros(17, 64), torch.zeros(4, 64), "does not fit"),
        (torch.zeros(1, 32), torch.zeros(4, 64), "does not fit"),
        (torch.zeros(1, 64, dtype=torch.bfloat16), torch.zeros(4, 64), "does not fit"),
        (torch.zeros(1, 40), torch.zeros(4, 40), "multiple of 16"),
        (torch.zeros(1, 64), torch.zeros(64, 4).T, "contiguous"),
        (torch.zeros(1, 64).half(), torch.zeros(4, 64).half(), "float16"),
    ],
)
def test_what_the_kernel_cannot_do_is_refused(x, weight, word):
    with pytest.raises(ValueError, match=word):
        linear(x, weight)


def test_available_says_why_not():
    assert available(torch.zeros(4, 64)) is None
    assert "CPU" in (available(torch.zeros(4, 64, device="meta")) or "")
    assert "multiple of 32" in (available(torch.zeros(4, 48, dtype=torch.bfloat16)) or "")


class Adapter(nn.Linear):
    """Stands for a quantised or adapter layer: a subclass with a forward of its own."""

    def forward(self, x):
        return super().forward(x) + 1


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), Adapter(64, 64), nn.Linear(64, 40), nn.Linear(40, 8)).eval()


@pytest.mark.parametrize("rows", [1, 7, 16, 17, 100])
@torch.no_grad()
def test_a_switched_model_computes_the_same(model, rows):
    x = torch.randn(rows, 64)
    stock = model(x)
    use_fast_linears(model)
    torch.testing.assert_close(model(x), stock, rtol=0, atol=1e-5)


def test_only_plain_layers_switch(model):
    use_fast_linears(model)
    assert [type(m) for m in model] == [FastLinear, Adapter, FastLinear, nn.Linear]  # 40 inputs do not suit
    use_fast_linears(model)
    assert type(model[0]) is FastLinear


def test_gradients_are_torchs(model):
    use_fast_linears(model)
    model(torch.randn(2, 64)).sum().backward()
    assert model[0].weight.grad is not None


@torch.no_grad()
def test_the_kernel_is_really_used(model, monkeypatch):
    """Few rows must not reach torch, many must."""
    calls = []
    stock = F.linear
    monkeypatch.setattr(F, "linear", lambda x, *rest: calls.append(x.shape[0]) or stock(x, *rest))
    layer = nn.Sequential(model[0])
    use_fast_linears(layer)
    layer(torch.zeros(16, 64))
    layer(torch.zeros(17, 64))
    assert calls == [17]


@pytest.fixture(params=["as they are", "as float32"])
def halves(request, monkeypatch):
    """On a CPU that has products of bfloat16, and on one that has none."""
    wide = request.param == "as float32"
    monkeypatch.setattr(many, "multiplied_in", lambda dtype, device="cpu": torch.float32 if wide else dtype)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("halves")
def test_products_of_many_rows_are_rounded_once(monkeypatch, dtype, bias):
    monkeypatch.setattr(many, "PIECE", 96 * 33)
    for rows, outs in ((1, 7), (40, 100)):
        x, weight, shift = random_layer(rows, outs, 96, dtype, bias)
        exact = linear_reference(x.float(), weight.float(), None if shift is None else shift.float())
        found = product(x.view(1, rows, 96), weight, shift)
        assert found.dtype == dtype
        torch.testing.assert_close(found[0].float(), exact, rtol=2**-8 if dtype == torch.bfloat16 else 1e-6, atol=1e-5)


@torch.no_grad()
@pytest.mark.usefixtures("halves")
def test_layers_of_many_rows_multiply_as_the_cpu_does_best(monkeypatch):
    kinds = []
    stock = F.linear
    monkeypatch.setattr(F, "linear", lambda x, *rest: kinds.append(x.dtype) or stock(x, *rest))
    layer = nn.Linear(64, 64).bfloat16()
    use_fast_linears(layer)
    layer(torch.zeros(17, 64).bfloat16())
    assert kinds == [many.multiplied_in(torch.bfloat16)]


def test_only_bfloat16_on_a_cpu_is_multiplied_in_another_dtype():
    for dtype in (torch.float16, torch.float32, torch.float64):
        assert multiplied_in(dtype) == dtype
    assert multiplied_in(torch.bfloat16, "cuda") == torch.bfloat16
    assert multiplied_in(torch.bfloat16) in (torch.bfloat16, torch.float32)


def test_a_torch_without_onednn_multiplies_bfloat16_as_float32(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(torch.ops, "mkldnn", None)  # such a torch has no operators of it
    assert multiplied_in.__wrapped__(torch.bfloat16) == torch.float32


@pytest.mark.parametrize(
    ("machine", "instructions", "wanted"),
    [
        ("x86_64", False, torch.float32),
        ("x86_64", True, torch.bfloat16),
        ("AMD64", False, torch.float32),
        ("aarch64", False, torch.bfloat16),
    ],
)
def test_bfloat16_that_onednn_converts_is_multiplied_as_float32(monkeypatch, machine, instructions, wanted):
    onednn = SimpleNamespace(_is_mkldnn_bf16_supported=lambda: True)  # as on every CPU that has AVX-512
    monkeypatch.setattr(torch.ops, "mkldnn", onednn)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: instructions)
    assert multiplied_in.__wrapped__(torch.bfloat16) == wanted


@pytest.mark.threads
def test_torchs_thread_count_is_followed_and_left_alone():
    import numba

    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            match_torch_threads()
            assert torch.get_num_threads() == threads
            assert numba.get_num_threads() == min(threads, numba.config.NUMBA_NUM_THREADS)
    finally:
        torch.set_num_threads(before)


@pytest.mark.threads
def test_loading_kernels_leaves_torchs_thread_count_alone():
    """In a process for each: only the first load starts Numba's threads."""
    program = """
torch.set_num_threads(1)
import winnow.kernels.{}
assert torch.get_num_threads() == 1, torch.get_num_threads()
assert numba.get_num_threads() == 1, numba.get_num_threads()
"""
    parts = [["-c", "import torch, numba" + program.format(module)] for module in ("linear.cpu", *ATTENTION)]
    for done in forked.run(parts, forked.python("import torch, numba", NUMBA_NUM_THREADS="3", OMP_NUM_THREADS="2")):
        assert done.code == 0, done.err


@pytest.mark.threads
@torch.no_grad()
def test_threads_of_a_server_may_run_kernels_at_once(model):
    x = torch.randn(1, 64)
    expected = model(x)
    results = []
    use_fast_linears(model)

    def work():
        for _ in range(20):
            with torch.no_grad():
                results.append(torch.equal(model(x).round(decimals=3), expected.round(decimals=3)))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 60
    assert all(results)
