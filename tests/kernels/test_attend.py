"""Every attention kernel against the definition, over what a cache can look like."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from winnow.kernels.attend import attend, attend_reference, kernel_for
from winnow.kernels.attend.blocked import attend_blocked
from winnow.kernels.attend.one_row import attend_one_row
from winnow.kernels.attend.reference import visible
from winnow.kernels.attend.sdpa import attend_sdpa
from winnow.kernels.dots import dots

KV_HEADS = 2
DEAD = 2**62
DTYPES = [torch.float32, torch.bfloat16]
OPTIONS = {
    "plain": {},
    "window": {"window": 40},
    "softcap": {"softcap": 5.0},
    "sinks": {"sinks": True},
    "everything": {"window": 200, "softcap": 5.0, "sinks": True},
}


@pytest.fixture(params=["decode", "prefill", "blocked", "sdpa"])
def kernel(request):
    """A kernel with the arguments and results of `attend_reference`, whether or not `attend` would choose it."""
    if request.param == "blocked":
        return lambda *tensors, past=None, **options: attend_blocked(*tensors, **options)
    if request.param == "sdpa":

        def sdpa(*tensors, softcap=None, sinks=None, **options):
            if softcap is not None or sinks is not None:
                pytest.skip("not what it is for")
            return attend_sdpa(*tensors, **options), None

        return sdpa
    pytest.importorskip("numba")
    if request.param == "decode":
        from winnow.kernels.attend.cpu_decode import attend_decode

        return lambda *tensors, **options: attend_decode(*tensors, return_lse=True, **options)
    from winnow.kernels.attend.cpu_prefill import attend_prefill

    def prefill(*tensors, past=None, **options):
        return attend_prefill(*tensors, return_lse=True, **options)

    return prefill


def inputs(*, rows: int, units: int, group: int = 2, head_dim: int = 64, dtype: torch.dtype = torch.float32, seed=0):
    """q, k, v, positions of the last `rows` of `units` tokens; k and v are views into slabs full of NaN elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    slabs = torch.full((2, KV_HEADS, units + 70, head_dim), float("nan"), dtype=dtype)
    slabs[:, :, 3 : units + 3] = torch.randn(2, KV_HEADS, units, head_dim, generator=generator).to(dtype)
    k, v = slabs[:, :, 3 : units + 3]
    q = torch.randn(rows, KV_HEADS * group, head_dim, generator=generator).to(dtype)
    return q, k, v, torch.arange(units - rows, units), torch.arange(units)


def options_of(name: str, group: int) -> dict:
    options = dict(OPTIONS[name])
    if options.pop("sinks", False):
        options["sinks"] = torch.linspace(-2.0, 6.0, KV_HEADS * group)
    return options


def assert_as_good_as_stock(kernel, tensors: tuple[Tensor, ...], **options) -> None:
    """float32: equal to 3e-6. bfloat16: at most twice what stock SDPA loses on the same inputs, plus 1e-3."""
    q, k, v, q_positions, k_positions = tensors
    scale = q.shape[-1] ** -0.5
    exact, exact_lse = attend_reference(
        q.float(), k.float(), v.float(), q_positions, k_positions,
        scale=scale, **{name: value for name, value in options.items() if name != "past"},
    )  # fmt: skip
    out, lse = kernel(*tensors, scale=scale, **options)
    assert out.shape == q.shape
    assert out.dtype == q.dtype
    seen = visible(q_positions, k_positions, options.get("window"))
    allowed = 3e-6 if q.dtype == torch.float32 else 2 * lost_by_stock(q, k, v, seen) + 1e-3
    assert (out.float() - exact).abs().max() <= allowed
    if lse is not None:
        torch.testing.assert_close(lse, exact_lse, rtol=0, atol=1e-5)


def lost_by_stock(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> float:
    """What stock SDPA in the dtype of q differs from itself in float32, under the same mask."""
    mask = seen.repeat_interleave(q.shape[1] // len(seen), 0)[None]

    def run(*tensors: Tensor) -> Tensor:
        q, k, v = (t.nan_to_num()[None] for t in tensors)
        return F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=mask, enable_gqa=True)

    return (run(q, k, v).float() - run(q.float(), k.float(), v.float())).nan_to_num().abs().max().item()


@pytest.mark.threads
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 5, 130])
@pytest.mark.parametrize("units", [1, 63, 64, 65, 1000])
def test_every_kernel_is_the_definition_for_any_number_of_units(kernel, units, rows, dtype):
    tensors = inputs(rows=min(rows, units), units=units, dtype=dtype)
    assert_as_good_as_stock(kernel, tensors, past=units - min(rows, units))


@pytest.mark.threads
def test_many_blocks_of_units_and_of_rows_are_joined(kernel):
    """More than any kernel's block of either; the largest logits come last, so that running maxima are raised."""
    q, k, v, q_positions, k_positions = inputs(rows=600, units=4500, group=1, head_dim=32)
    k *= torch.linspace(0.1, 2.0, 4500)[:, None]
    assert_as_good_as_stock(kernel, (q, k, v, q_positions, k_positions), past=3900)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [1, 2, 4, 7])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128])
def test_every_kernel_is_the_definition_for_any_heads(kernel, head_dim, group, dtype):
    for rows in (1, 6):
        tensors = inputs(rows=rows, units=150, group=group, head_dim=head_dim, dtype=dtype)
        assert_as_good_as_stock(kernel, tensors, past=150 - rows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 5, 130])
def test_units_may_all_lie_before_the_rows(kernel, rows, dtype):
    q, k, v, q_positions, k_positions = inputs(rows=rows, units=300, dtype=dtype)
    assert_as_good_as_stock(kernel, (q, k, v, q_positions + rows, k_positions), past=300)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 5, 130])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_kernel_is_the_definition_with_windows_caps_and_sinks(kernel, name, rows, dtype):
    assert_as_good_as_stock(kernel, inputs(rows=rows, units=300, dtype=dtype), past=300 - rows, **options_of(name, 2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 5, 130])
@pytest.mark.parametrize("window", [None, 40])
def test_shuffled_positions_are_compared_not_assumed(kernel, window, rows, dtype):
    q, k, v, _, _ = inputs(rows=rows, units=300, dtype=dtype)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    q_positions = torch.arange(300)[:: 300 // rows][:rows]
    assert_as_good_as_stock(kernel, (q, k, v, q_positions, order), window=window)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 5, 130])
def test_dead_slots_differ_per_head_and_may_hold_nan(kernel, rows, dtype):
    q, k, v, q_positions, k_positions = inputs(rows=rows, units=300, dtype=dtype)
    positions = k_positions.repeat(KV_HEADS, 1)
    for head in range(KV_HEADS):
        dead = torch.randperm(170, generator=torch.Generator().manual_seed(head))[:60]
        dead = torch.cat([dead, torch.arange(40 + head, 110)])  # a long run of them, too
        positions[head, dead] = DEAD
        k[head, dead] = v[head, dead] = float("nan")
    assert_as_good_as_stock(kernel, (q, k, v, q_positions, positions))


@pytest.mark.parametrize("rows", [1, 130])
def test_a_row_that_sees_nothing_yields_zero(kernel, rows):
    q, k, v, _, k_positions = inputs(rows=rows, units=200)
    q_positions = torch.full((rows,), 150)
    q_positions[0] = -1
    out, lse = kernel(q, k, v, q_positions, k_positions, scale=0.1)
    assert out[0].eq(0).all()
    assert out.isfinite().all()
    assert lse is None or (lse[0].isneginf().all() and lse[1:].isfinite().all())


def test_large_logits_neither_overflow_nor_vanish(kernel):
    """Logits in the hundreds, where e**logit is not a float32."""
    q, k, v, q_positions, k_positions = inputs(rows=5, units=300)
    exact, _ = attend_reference(q, k, v, q_positions, k_positions, scale=30.0)
    torch.testing.assert_close(kernel(q, k, v, q_positions, k_positions, scale=30.0)[0], exact, rtol=0, atol=1e-3)


def test_attend_joins_what_was_attended_apart():
    """The log-sum-exp is that of the softmax: two halves weighted by it are the whole."""
    q, k, v, q_positions, k_positions = inputs(rows=3, units=200)
    halves = [
        attend(q, k[:, s], v[:, s], q_positions, k_positions[s], scale=0.1, return_lse=True)
        for s in (slice(0, 90), slice(90, 200))
    ]
    lse = torch.stack([lse for _, lse in halves])
    weights = lse.softmax(0)[..., None]
    whole = attend(q, k, v, q_positions, k_positions, scale=0.1, past=197)
    torch.testing.assert_close(weights[0] * halves[0][0] + weights[1] * halves[1][0], whole, rtol=0, atol=2e-6)


def test_every_element_of_the_output_is_written(kernel, monkeypatch):
    empty = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: empty(*a, **k).fill_(float("nan")))
    for rows in (1, 130):
        q, k, v, q_positions, k_positions = inputs(rows=rows, units=150, group=7, head_dim=96)
        assert kernel(q, k, v, q_positions, k_positions, scale=0.1)[0].isfinite().all()


def test_queries_may_be_a_transposed_view(kernel):
    q, k, v, q_positions, k_positions = inputs(rows=6, units=150)
    view = q.transpose(0, 1).contiguous().transpose(0, 1)
    assert not view.is_contiguous()
    assert_as_good_as_stock(kernel, (view, k, v, q_positions, k_positions), past=144)


@pytest.mark.threads
def test_runs_of_one_head_are_merged_when_there_are_more_threads_than_heads():
    pytest.importorskip("numba")
    from winnow.kernels.attend.cpu_decode import attend_decode

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(5)
        for group in (1, 4):
            tensors = inputs(rows=2, units=1500, group=group)
            kernel = lambda *t, **options: attend_decode(*t, return_lse=True, **options)  # noqa: E731
            assert_as_good_as_stock(kernel, tensors, past=1498, sinks=torch.linspace(-2, 3, KV_HEADS * group))
    finally:
        torch.set_num_threads(threads)


@pytest.fixture(params=["decode", "one_row"])
def giving(request):
    """A kernel with the arguments and results of `attend(..., return_logits=True)`."""
    if request.param == "one_row":
        return lambda *tensors, past=None, **options: attend_one_row(*tensors, **options)
    pytest.importorskip("numba")
    return lambda *tensors, **options: attend(*tensors, return_logits=True, **options)


def assert_gives_its_logits(kernel, tensors: tuple[Tensor, ...], **options) -> None:
    """The logits are the definition's; the output and lse those that the same kernel has without them."""
    q, k, _, q_positions, k_positions = tensors
    _, q_heads, head_dim = q.shape
    logits = head_dim**-0.5 * torch.stack(
        [q[0, h].float() @ k[h * KV_HEADS // q_heads].float().T for h in range(q_heads)]
    )
    if options.get("softcap") is not None:
        logits = options["softcap"] * (logits / options["softcap"]).tanh()
    seen = visible(q_positions, k_positions, options.get("window")).expand(KV_HEADS, 1, -1)
    logits = logits.masked_fill(~seen[:, 0].repeat_interleave(q_heads // KV_HEADS, 0), float("-inf"))
    out, lse, got = kernel(*tensors, scale=head_dim**-0.5, **options)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, logits, rtol=0, atol=1e-5)
    assert_as_good_as_stock(lambda *_, **__: (out, lse), tensors, **options)


@pytest.mark.threads
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("units", [1, 15, 16, 17, 63, 64, 65, 513, 1003])
def test_logits_of_one_row_for_any_number_of_units(giving, units, dtype):
    for group, head_dim in ((1, 32), (2, 128), (7, 64)):
        tensors = inputs(rows=1, units=units, group=group, head_dim=head_dim, dtype=dtype)
        assert_gives_its_logits(giving, tensors, past=units - 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIONS)
def test_logits_of_one_row_with_windows_caps_and_sinks(giving, name, dtype):
    assert_gives_its_logits(giving, inputs(rows=1, units=530, dtype=dtype), past=529, **options_of(name, 2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 100])
def test_logits_of_units_that_the_row_does_not_see_are_hidden(giving, window, dtype):
    """Shuffled positions, runs of dead slots that differ per head, with NaN in their memory."""
    q, k, v, _, _ = inputs(rows=1, units=530, dtype=dtype)
    positions = torch.stack([torch.randperm(530, generator=torch.Generator().manual_seed(head)) for head in range(2)])
    positions[0, 40:133] = positions[1, :7] = positions[1, 300:490] = DEAD
    k.masked_fill_((positions == DEAD)[..., None], float("nan"))
    v.masked_fill_((positions == DEAD)[..., None], float("nan"))
    assert_gives_its_logits(giving, (q, k, v, torch.tensor([400]), positions), window=window)


def test_logits_of_a_row_that_sees_nothing(giving):
    q, k, v, _, k_positions = inputs(rows=1, units=70)
    out, lse, logits = giving(q, k, v, torch.tensor([-1]), k_positions, scale=0.1)
    assert out.eq(0).all()
    assert lse.isneginf().all()
    assert logits.isneginf().all()


@pytest.mark.threads
def test_logits_of_one_row_are_the_dots_and_every_one_is_written(monkeypatch):
    """Five threads on two heads: no thread writes past the end of its own run of units, whose ends lie anywhere."""
    pytest.importorskip("numba")
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(float("nan")))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(5)
        q, k, v, q_positions, k_positions = inputs(rows=1, units=1501, group=2, dtype=torch.bfloat16)
        for hidden in (1501, 700):
            seen = k_positions.clone()
            seen[hidden : hidden + 300] = DEAD
            _, _, logits = attend(q, k, v, q_positions, seen, scale=0.5, return_logits=True)
            expected = (0.5 * dots(q[0], k)).masked_fill(seen == DEAD, float("-inf"))
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    finally:
        torch.set_num_threads(threads)


def test_logits_are_given_where_no_numba_kernel_fits():
    tensors = inputs(rows=1, units=100, head_dim=40)
    assert_gives_its_logits(lambda *t, **options: attend(*t, return_logits=True, **options), tensors, past=99)


def lying_apart(units: int, *, rows: int, group: int, dtype: torch.dtype, heads: int = 3):
    """Rows over `units` of each of three heads' 300, in any order, and which; all others are NaN."""
    q, _, _, _, _ = inputs(rows=rows, units=300, group=1, dtype=dtype)
    generator = torch.Generator().manual_seed(units)
    q = torch.randn(rows, heads * group, q.shape[2], generator=generator).to(dtype)
    index = torch.stack([torch.randperm(300, generator=generator)[:units] for _ in range(heads)])
    k, v = torch.full((2, heads, 300, q.shape[2]), float("nan"), dtype=dtype)
    for head, places in enumerate(index):
        k[head, places], v[head, places] = torch.randn(2, units, q.shape[2], generator=generator).to(dtype)
    return q, k, v, index


@pytest.mark.threads
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "group"), [(1, 1), (1, 3), (3, 3), (2, 7), (20, 3)])
@pytest.mark.parametrize("units", [1, 63, 64, 65, 200])
def test_units_that_lie_apart_are_read_where_they_lie(units, rows, group, dtype):
    q, k, v, index = lying_apart(units, rows=rows, group=group, dtype=dtype)
    rest = torch.arange(300, 300 + rows), torch.arange(units)
    for options in ({}, {"softcap": 5.0, "sinks": torch.linspace(-2, 3, 3 * group)}):
        exact, exact_lse = attend_reference(q.float(), k.float(), v.float(), *rest, scale=0.2, index=index, **options)
        out, lse = attend(q, k, v, *rest, scale=0.2, past=units, index=index, return_lse=True, **options)
        torch.testing.assert_close(out.float(), exact, rtol=0, atol=3e-6 if dtype == torch.float32 else 2e-2)
        torch.testing.assert_close(lse, exact_lse, rtol=0, atol=1e-5)
        assert out.dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES)
def test_positions_and_logits_are_those_of_the_units_that_lie_apart(dtype):
    q, k, v, index = lying_apart(150, rows=1, group=3, dtype=dtype)
    rest = torch.tensor([280]), index
    got = attend(q, k, v, *rest, scale=0.2, window=200, index=index, return_logits=True)
    places = index[..., None].expand(-1, -1, 64)
    side_by_side = attend(q, k.gather(1, places), v.gather(1, places), *rest, scale=0.2, window=200, return_logits=True)
    for mine, theirs in zip(got, side_by_side, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("index", "says"),
    [
        (torch.tensor([[0, 300]] * 3), "places from 0 to 300, but k and v have units 0 to 299"),
        (torch.tensor([[-1]] * 3), "places from -1 to -1"),
        (torch.zeros(2, 4, dtype=torch.int64), "int64, not \\[2, 4\\]"),
        (torch.zeros(3, 4, dtype=torch.int32), "torch.int32"),
    ],
)
def test_places_that_are_not_there_are_refused(index, says):
    q, k, v, _ = lying_apart(5, rows=1, group=1, dtype=torch.float32)
    with pytest.raises(ValueError, match=says):
        attend(q, k, v, torch.tensor([9]), torch.arange(index.shape[1]), scale=1.0, index=index)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_is_chosen_by_shape_and_device(dtype):
    pytest.importorskip("numba")
    assert kernel_for("cpu", dtype, 2, 128, plain=True) == "decode"
    assert kernel_for("cpu", dtype, 2, 80, plain=True) == "sdpa"
    assert kernel_for("cpu", dtype, 2, 80, plain=False) == "blocked"
    assert kernel_for("cuda", dtype, 2, 128, plain=True) == "sdpa"
    assert kernel_for("cpu", torch.float32, 512, 128, plain=False) == "prefill"
    assert kernel_for("cpu", torch.float16, 512, 128, plain=True) == "sdpa"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"q": torch.zeros(2, 5, 64)}, "shapes"),
        ({"q": torch.zeros(2, 4, 64, dtype=torch.bfloat16)}, "dtype"),
        ({"k": torch.zeros(2, 64, 10).mT}, "side by side"),
        ({"q_positions": torch.arange(3)}, "positions"),
        ({"past": 7}, "past=7"),
        ({"sinks": torch.zeros(3)}, "sinks"),
        ({"scale": 0.0}, "scale"),
        ({"return_logits": True}, "2 rows"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change, word):
    q, k, v, q_positions, k_positions = inputs(rows=2, units=10)
    arguments = {"q": q, "k": k, "v": v, "q_positions": q_positions, "k_positions": k_positions, "scale": 0.1}
    with pytest.raises(ValueError, match=word):
        attend(**(arguments | change))


@pytest.mark.parametrize(
    ("heads", "threads", "runs"), [(8, 2, 1), (3, 2, 2), (1, 4, 4), (2, 3, 3), (9, 2, 1), (5, 4, 3)]
)
def test_no_thread_waits_for_the_others(heads, threads, runs):
    pytest.importorskip("numba")
    from winnow.kernels.attend.cpu_decode import balanced_runs

    assert balanced_runs(heads, threads) == runs
