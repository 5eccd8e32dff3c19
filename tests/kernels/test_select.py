"""The arithmetic of selecting: worked examples, and the kernels against the definitions."""

import math

import pytest
import torch
from torch import Tensor

from winnow.kernels import select
from winnow.kernels.select import reference

INF = float("inf")
COUNTS = [1, 2, 15, 16, 17, 63, 2047, 2048, 2049, 5003]  # around a vector and a block


@pytest.fixture(params=["reference", "cpu"])
def kernels(request):
    if request.param == "reference":
        return reference
    pytest.importorskip("numba")
    return select


@pytest.fixture
def cpu():
    pytest.importorskip("numba")
    from winnow.kernels.select import cpu

    return cpu


def randoms(*shape: int, seed: int = 0) -> Tensor:
    """A view into memory full of NaN elsewhere."""
    slab = torch.full((*shape[:-1], shape[-1] + 23), float("nan"))
    slab[..., 5 : shape[-1] + 5] = 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return slab[..., 5 : shape[-1] + 5]


def assert_near(got: Tensor, expected: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=atol)


def test_a_worked_example_of_one_head(kernels):
    """Two rows, eight candidates: every step to six digits."""
    logits = torch.tensor([[[2.0, 0, 1, -1, 3, 0, 0, -2], [1, 1, 0, 0, 2, 2, -1, 0]]])
    norms = torch.tensor([[4.0, 2, 3, 5, 1, 2, 4, 3]])
    log_f, log_r = kernels.power_mean(logits, 0.5), kernels.structural_prior(norms)
    f = [[0.175349, 0.070384, 0.064507, 0.025893, 0.476648, 0.144000, 0.023731, 0.019488]]
    r = [[0.150524, 0.201455, 0.151727, 0.105573, 0.205394, 0.120675, 0.064601, 0.000051]]
    assert_near(log_f.exp(), torch.tensor(f), 1e-6)
    assert_near(log_r.exp(), torch.tensor(r), 1e-6)
    assert_near(kernels.mixing_weight(log_f, log_r, 9.0), torch.tensor([[1.107256]]))
    weight = kernels.mixing_weight(log_f, log_r, 0.25)
    assert weight.tolist() == [[0.25]]
    log_q = kernels.fuse(log_f, log_r, weight, "forward")
    q = [[0.169143, 0.103152, 0.086312, 0.045813, 0.408834, 0.138169, 0.033948, 0.014629]]
    assert_near(log_q.exp(), torch.tensor(q), 1e-6)
    scores = kernels.suppress(log_q, 2)
    s = [[-1.777012, -2.766095, -2.628015, -5.271931, -0.894445, -3.064116, -4.786548, -5.066594]]
    assert_near(scores, torch.tensor(s))
    assert kernels.top(scores, 3).tolist() == [[0, 2, 4]]
    assert kernels.top(log_q, 3).tolist() == [[0, 4, 5]]


def test_a_worked_example_of_three_heads(kernels):
    logits = torch.tensor([[[2.0, 0, 1, -1]], [[0.0, 2, 1, 0]], [[1.0, 1, 1, 3]]])
    log_f, log_r = kernels.power_mean(logits, 0.5), kernels.structural_prior(torch.ones(3, 4))
    log_q = kernels.fuse(log_f, log_r, kernels.mixing_weight(log_f, log_r, 0.35), "forward")
    scores = kernels.exclude(kernels.suppress(log_q, 1))
    expected = [
        [-1.246329, -2.848089, -2.290757, -5.559793],
        [-2.742565, -1.321742, -2.339179, -4.212954],
        [-2.679557, -2.801252, -2.971703, -1.145827],
    ]
    assert_near(scores, torch.tensor(expected))
    assert kernels.top(scores, 2).tolist() == [[0, 2], [1, 2], [0, 3]]


@pytest.mark.threads
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("alpha", [0, 0.25, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_power_mean(cpu, alpha, count, weighted):
    for rows in (1, 2, 7):
        weights = 2.0 ** -torch.arange(rows) if weighted else None
        logits = randoms(3, rows, count)
        logits[0, 0, count // 2 :] = -INF  # seen by some rows only
        logits[1, :, 1::3] = -INF  # seen by no row
        logits[2, : rows // 2] = -INF  # rows that see nothing
        got = cpu.power_mean(logits, alpha, weights)
        assert_near(got, reference.power_mean(logits, alpha, weights))
        assert got.isfinite().all()
        assert_near(got.exp().sum(-1), torch.ones(3))


@pytest.mark.parametrize("alpha", [0, 0.5, 1.0])
def test_a_row_that_weighs_twice_is_there_twice(kernels, alpha):
    logits = randoms(2, 3, 50)
    twice = torch.cat((logits, logits[:, 1:2]), 1)
    got = kernels.power_mean(logits, alpha, torch.tensor([0.25, 0.5, 0.25]))
    assert_near(got, kernels.power_mean(twice, alpha))


@pytest.mark.parametrize("alpha", [0, 0.5])
def test_a_head_whose_rows_see_nothing_prefers_nothing(kernels, alpha):
    logits = torch.full((2, 2, 300), -INF)
    logits[1] = randoms(2, 300)
    got = kernels.power_mean(logits, alpha)
    assert_near(got[0], torch.full((300,), -math.log(300)))
    assert_near(got[1:], reference.power_mean(logits[1:], alpha))


def test_logits_far_below_the_highest_keep_their_order(kernels):
    """e**-500 is no float32, its logarithm is."""
    logits = torch.linspace(-500, 200, 4000).repeat(1, 2, 1)
    got = kernels.power_mean(logits, 0.5)
    assert_near(got, (logits[:, 0].double().log_softmax(-1)).float(), 1e-4)
    assert kernels.top(got, 10).tolist() == [list(range(3990, 4000))]


@pytest.mark.parametrize("count", COUNTS)
def test_prior_and_fusion(count):
    """The prior is a distribution; no other weight beats the one found; a weight of 0 or 1 leaves one of the two."""
    norms = randoms(3, count).abs()
    norms[0, 0] = 0.0
    log_r, log_f = select.structural_prior(norms), select.power_mean(randoms(3, 2, count, seed=1), 0.5)
    assert_near(log_r.exp().sum(-1), torch.ones(3))
    f, r = log_f.exp(), log_r.exp()

    def size(weight: Tensor) -> Tensor:
        return ((1 - weight) * f + weight * r).square().sum(-1)

    best = select.mixing_weight(log_f, log_r, 9.0)
    for other in (best - 0.01, best + 0.01):
        assert ((size(best) <= size(other) + 1e-7) | (best[:, 0] == 0) | (best[:, 0] == 9)).all()
    ends = torch.tensor([[0.0], [1.0], [0.0]])
    for fusion in ("forward", "reverse"):
        assert_near(select.fuse(log_f, log_r, ends, fusion).exp(), torch.where(ends == 1, r, f))
    assert select.mixing_weight(log_r, log_r, 0.25).eq(0).all()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("reach", [0, 1, 3, 8, 16, 31, 700, 9000])
def test_sliding_maxima(reach, count):
    scores = randoms(2, count)
    scores[0, ::5] = select.LEAST
    near = torch.stack(
        [scores[:, max(0, i - reach) : i + reach + 1].amax(-1) for i in range(0, count, 1 + count // 50)]
    )
    got = select.highest_near(scores, reach)
    assert torch.equal(got[:, :: 1 + count // 50], near.T)
    assert torch.equal(select.suppress(scores, 2 * reach), 2 * scores - got)


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_exclusion_between_heads(heads):
    """One head alone keeps its scores; of several, a head keeps the more of a score the more of it is its own."""
    scores = randoms(heads, 63)
    scores[0, ::2] = select.LEAST
    lost = scores - select.exclude(scores)
    assert (lost >= -1e-5).all()
    if heads == 1:
        assert_near(lost, torch.zeros(1, 63))
    else:
        order = scores.argsort(0)
        assert (lost.gather(0, order).diff(dim=0) <= 1e-4).all()


@pytest.mark.threads
@pytest.mark.parametrize("count", COUNTS)
def test_top_equals_the_definition_whatever_the_scores(cpu, count):
    scores = randoms(6, count)
    scores[1] = scores[1].round()  # many equal
    scores[2] = scores[2].clamp_min(2.0)
    scores[3] = -0.0
    scores[3, ::2] = 0.0  # the same number
    scores[4, ::3], scores[4, 1::3] = -INF, INF
    scores[5] = 1e-42 * scores[5].round()  # below the smallest normal number
    for chosen in {1, 2, count // 3, count - 1, count} - {0}:
        if chosen <= count:
            got = cpu.top(scores, chosen)
            assert got.dtype == torch.int64
            assert torch.equal(got, reference.top(scores, chosen)), chosen


def test_ties_go_to_the_lower_index(kernels):
    scores = torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0, 2.0], [5.0] * 6])
    assert kernels.top(scores, 3).tolist() == [[1, 2, 3], [0, 1, 2]]


def test_a_kernel_serves_what_it_can(cpu):
    scores = randoms(3, 50)
    assert select._kernels(scores) is cpu
    assert select._kernels(scores.double()) is reference
    assert select._kernels(scores.to("meta")) is reference


def test_scores_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="side by side"):
        select.top(torch.zeros(6, 2).T, 1)


@pytest.mark.parametrize("count", [0, 7])
def test_no_more_than_there_is(count):
    with pytest.raises(ValueError, match=f"count={count} of 6"):
        select.top(torch.zeros(1, 6), count)


def test_a_score_that_is_no_number_is_refused(cpu):
    with pytest.raises(ValueError, match="NaN"):
        cpu.top(torch.tensor([[1.0, float("nan"), 2.0]]), 3)
