"""The selectors of slow-fast reading against golden vectors, an independent definition, and what must hold of them."""

import math
from dataclasses import replace

import pytest
import torch

import slowfast_reference as reference
from winnow.kernels import select as steps
from winnow.policies.read.selectors import AlphaFair, Attention, Evidence, Last, Peaks, Persist, Pooled

ROWS = [[2.0, 0, 1, -1, 3, 0, 0, -2], [1.0, 1, 0, 0, 2, 2, -1, 0]]
NORMS = [4.0, 2, 3, 5, 1, 2, 4, 3]
HEADS = [[2.0, 0, 1, -1], [0.0, 2, 1, 0], [1.0, 1, 1, 3]]
F = [0.175349, 0.070384, 0.064507, 0.025893, 0.476648, 0.144, 0.023731, 0.019488]
R = [0.150524, 0.201455, 0.151727, 0.105573, 0.205394, 0.120675, 0.064601, 0.000051]
Q = [0.169143, 0.103152, 0.086312, 0.045813, 0.408834, 0.138169, 0.033948, 0.014629]
Q_OF_ONE = [0.195219, 0.089799, 0.10554, 0.044047, 0.459339, 0.061526, 0.0419, 0.002628]
S = [-1.777012, -2.766095, -2.628015, -5.271931, -0.894445, -3.064116, -4.786548, -5.066594]
HEADS_S = [
    [-1.246329, -2.848089, -2.290757, -5.559793],
    [-2.742565, -1.321742, -2.339179, -4.212954],
    [-2.679557, -2.801252, -2.971703, -1.145827],
]


def near(got, expected, atol=1e-5):
    torch.testing.assert_close(got, torch.as_tensor(expected, dtype=got.dtype), rtol=0, atol=atol)


def evidence(logits, norms=None, last=None, around=None, behind=None):
    """last: {index: score} per KV head. around: [kv_heads, rows, 2], the logits of the units before and after the
    candidates; none are seen otherwise."""
    logits = torch.as_tensor(logits, dtype=torch.float32)
    norms = torch.ones_like(logits[:, 0]) if norms is None else torch.as_tensor(norms, dtype=torch.float32)
    around = torch.full((*logits.shape[:2], 2), -math.inf) if around is None else around
    seen = torch.cat((around[..., :1], logits, around[..., 1:]), -1)
    if last is not None:
        last = Last(torch.tensor([[*head] for head in last]), torch.tensor([[*head.values()] for head in last]))
    return Evidence(seen, slice(1, 1 + logits.shape[-1]), norms, last, behind)


def random_evidence(seed, kv_heads=2, rows=3, count=40, blind=0.0):
    """blind: the share of logits that are -inf. A third was selected last, of which some are no candidates any more."""
    source = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(kv_heads, rows, count, generator=source)
    logits = logits.masked_fill(torch.rand(logits.shape, generator=source) < blind, -math.inf)
    norms = torch.rand(kv_heads, count, generator=source) * 4 + 0.2
    last = []
    for _ in range(kv_heads):
        index = sorted(torch.randperm(count, generator=source)[: count // 3 + 1].tolist())
        last.append({j: -math.inf if j % 4 == 0 else float(torch.rand(1, generator=source)) for j in index})
    behind = 7 * torch.arange(rows).flip(0)
    return evidence(logits, norms, last, 3 * torch.randn(kv_heads, rows, 2, generator=source), behind)


def expected(found, selector, **options):
    last = torch.full_like(found.norms, -math.inf)
    last.scatter_(1, found.last.index, found.last.scores)
    total = found.seen.logsumexp(-1)
    return reference.scores(found.logits, found.norms, last, selector, total=total, behind=found.behind, **options)


def chosen(scores, count):
    return steps.top(scores, count).tolist()


def test_golden_vector_of_two_rows():
    """G1: every step of the authors' selector, but with a suppression of width 2."""
    f = steps.power_mean(torch.tensor([ROWS]), 0.5)
    r = steps.structural_prior(torch.tensor([NORMS]))
    near(f.exp(), [F])
    near(r.exp(), [R])
    near(steps.mixing_weight(f, r, 2.0), [[1.107256]])
    weight = steps.mixing_weight(f, r, 0.25)
    near(weight, [[0.25]])
    q = steps.fuse(f, r, weight, "forward")
    near(q.exp(), [Q])
    s = steps.suppress(q, 2)
    near(s, [S], atol=2e-5)
    assert chosen(s, 3) == [[0, 2, 4]]
    assert chosen(q, 3) == [[0, 4, 5]]


def test_golden_vector_of_one_row():
    """G2: a single row mixes in more of the prior."""
    f, r = steps.power_mean(torch.tensor([ROWS[:1]]), 0.5), steps.structural_prior(torch.tensor([NORMS]))
    near(steps.mixing_weight(f, r, 2.0), [[1.104458]])
    q = AlphaFair(suppression=False).scores(evidence([ROWS[:1]], [NORMS]))
    near(q.exp(), [Q_OF_ONE])
    assert chosen(steps.suppress(q, 2), 3) == [[0, 2, 4]]


def test_two_rows_mix_in_a_quarter_of_the_prior():
    near(AlphaFair(suppression=False).scores(evidence([ROWS], [NORMS])).exp(), [Q])


def test_golden_vector_of_three_heads():
    """G3: with a suppression of width 1, which is none."""
    scores = AlphaFair(suppression=False).scores(evidence([[row] for row in HEADS]))
    near(scores, HEADS_S, atol=2e-5)
    assert chosen(scores, 2) == [[0, 2], [1, 2], [0, 3]]
    assert chosen(AlphaFair(suppression=False, cross_head=False).scores(evidence([[HEADS[2]]])), 2) == [[0, 3]]


@pytest.mark.parametrize("heads", [1, 2])
def test_two_heads_do_not_shun_each_other(heads):
    found = random_evidence(0, kv_heads=heads)
    near(AlphaFair(cross_head=True).scores(found), AlphaFair(cross_head=False).scores(found), atol=0)


def test_three_heads_shun_each_other():
    found = random_evidence(0, kv_heads=3)
    assert not torch.allclose(AlphaFair(cross_head=True).scores(found), AlphaFair(cross_head=False).scores(found))


SELECTORS = {
    "alpha_fair": (AlphaFair(), {}),
    "no prior": (AlphaFair(prior=False), {"prior": False}),
    "no suppression": (AlphaFair(suppression=False), {"suppression": False}),
    "no cross_head": (AlphaFair(cross_head=False), {"cross_head": False}),
    "reverse": (AlphaFair(fusion="reverse"), {"fusion": "reverse"}),
    "geometric": (AlphaFair(alpha=0.0), {"alpha": 0.0}),
    "arithmetic": (AlphaFair(alpha=1.0), {"alpha": 1.0}),
    "attention": (Attention(), {}),
    "pooled": (Pooled(width=5), {"pool": 5}),
    "pooled widely": (Pooled(width=17), {"pool": 17}),
    "persist": (Persist(), {}),
    "persist in reverse": (Persist(fusion="reverse"), {"fusion": "reverse"}),
    "peaks": (Peaks(5, 0.7), {"pool": 5, "memory": 0.7}),
    "peaks, near": (Peaks(5, 0.7, far=0.0), {"pool": 5, "memory": 0.7, "far": 0.0}),
    "peaks, soon halved": (Peaks(3, 0.7, half_life=4), {"pool": 3, "memory": 0.7, "half_life": 4}),
    "peaks, all alike": (Peaks(3, 0.7, half_life=None), {"pool": 3, "memory": 0.7, "half_life": None}),
}
KINDS = {Attention: "attention", AlphaFair: "alpha_fair", Pooled: "pooled", Persist: "persist", Peaks: "peaks"}


@pytest.fixture(params=SELECTORS)
def arm(request):
    """A selector, its name in a plan, and its parameters in the reference."""
    selector, options = SELECTORS[request.param]
    return selector, KINDS[type(selector)], options


@pytest.mark.parametrize(("kv_heads", "rows", "count"), [(1, 1, 1), (2, 1, 7), (3, 4, 33), (4, 6, 100), (2, 2, 1025)])
def test_equals_the_definition(arm, kv_heads, rows, count):
    selector, name, options = arm
    found = random_evidence(rows, kv_heads, rows, count)
    got, wanted = selector.scores(found), expected(found, name, **options)
    assert got.shape == (kv_heads, count)
    near(got, wanted, atol=2e-4)
    budget = max(1, count // 3)
    assert chosen(got, budget) == [reference.best(head, budget) for head in wanted.tolist()]


@pytest.mark.parametrize("rows", [1, 5])
def test_rows_that_see_nothing_count_for_nothing(rows):
    """Early rows of a prompt see few of the candidates, or none."""
    found = random_evidence(4, rows=rows, blind=0.4)
    blind = torch.full((2, 2, found.logits.shape[2]), -math.inf)
    more = evidence(torch.cat((blind, found.logits), 1))
    near(Attention().scores(more), Attention().scores(found))
    wanted = expected(found, "attention")
    both = wanted > -30
    near(Attention().scores(found)[both], wanted[both], atol=1e-4)
    assert (Attention().scores(found)[~both] < -25).all()


def test_no_score_is_nan_where_no_row_sees_anything(arm):
    selector, _, _ = arm
    found = random_evidence(5)
    hidden = found.logits.clone()
    hidden[0] = -math.inf
    got = selector.scores(replace(evidence(hidden, found.norms, None, torch.zeros(2, 3, 2)), last=found.last))
    assert not got.isnan().any()
    assert all(len(set(head)) == 7 for head in chosen(got, 7))


def test_a_constant_added_to_rows_and_their_order_change_nothing(arm):
    """J5."""
    selector, _, _ = arm
    found = random_evidence(6, kv_heads=3, rows=5)
    order = torch.randperm(5)
    moved = replace(found, seen=(found.seen + torch.randn(3, 5, 1))[:, order], behind=found.behind[order])
    near(selector.scores(moved), selector.scores(found), atol=1e-4)
    assert chosen(selector.scores(moved), 9) == chosen(selector.scores(found), 9)


@pytest.mark.parametrize(
    "selector", [Attention(), AlphaFair(prior=False, suppression=False, cross_head=False), Pooled(width=1)]
)
def test_one_row_alone_ranks_by_its_logits(selector):
    """J6."""
    found = random_evidence(7, rows=1)
    wanted = found.logits[:, 0].topk(6).indices.sort().values
    assert chosen(selector.scores(found), 6) == wanted.tolist()


def test_nothing_is_mixed_in_where_attention_is_the_prior():
    r = steps.structural_prior(torch.tensor([NORMS]))
    near(steps.mixing_weight(r, r, 0.25), [[0.0]])
    near(AlphaFair(suppression=False).scores(evidence(r[:, None], [NORMS])), r)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("most", [0.25, 0.35])
def test_distributions_sum_to_one_and_the_weight_is_bounded(seed, most):
    """J7."""
    found = random_evidence(seed, kv_heads=3)
    f, r = steps.power_mean(found.logits / (1 + seed), 0.5), steps.structural_prior(found.norms)
    weight = steps.mixing_weight(f, r, most)
    assert (weight >= 0).all()
    assert (weight <= most).all()
    for each in (f, r, steps.fuse(f, r, weight, "forward"), steps.fuse(f, r, weight, "reverse")):
        near(each.exp().sum(-1), torch.ones(3))


def test_the_weight_minimises_the_length_of_the_mixture():
    f, r = (
        steps.power_mean(torch.zeros(1, 1, 8) + torch.randn(8) / 9, 0.5),
        steps.structural_prior(torch.tensor([NORMS])),
    )
    best = float(steps.mixing_weight(f, r, 1.0))
    f, r = f.exp().double(), r.exp().double()
    grid = torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None]
    lengths = ((1 - grid) * f + grid * r).square().sum(-1)
    assert abs(float(grid[lengths.argmin()]) - best) < 1e-3


def test_the_fusion_minimises_the_divergence():
    """Forward: (1 - w) KL(f|q) + w KL(r|q); reverse: (1 - w) KL(q|f) + w KL(q|r)."""
    f, r = torch.tensor([F]).double(), torch.tensor([R]).double()
    weight = torch.tensor([[0.3]])

    def divergence(a, b):
        return (a * (a / b).log()).sum()

    def cost(q, fusion):
        pairs = [(f, q), (r, q)] if fusion == "forward" else [(q, f), (q, r)]
        return 0.7 * divergence(*pairs[0]) + 0.3 * divergence(*pairs[1])

    for fusion in ("forward", "reverse"):
        q = steps.fuse(f.float().log(), r.float().log(), weight, fusion).exp().double()
        for _ in range(20):
            other = q * (1 + 0.05 * torch.randn(8))
            assert cost(q, fusion) <= cost(other / other.sum(), fusion)


def test_ties_go_to_the_earlier():
    assert chosen(torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0, 2.0]]), 3) == [[1, 2, 3], [0, 1, 2]]
    assert chosen(torch.tensor([[5.0, 1.0, 1.0, 1.0, 4.0]]), 3) == [[0, 1, 4]]


def test_pooling_keeps_the_neighbours_of_a_peak_and_suppression_removes_them():
    logits = torch.zeros(1, 1, 60)
    logits[..., 30] = 9.0
    logits[..., 29] = logits[..., 31] = 2.0
    found = evidence(logits)
    assert chosen(Pooled(width=5).scores(found), 5) == [[28, 29, 30, 31, 32]]
    assert 29 not in chosen(AlphaFair(prior=False).scores(found), 5)[0]
    assert 29 in chosen(AlphaFair(prior=False, suppression=False).scores(found), 5)[0]


def test_suppression_reaches_sixteen_places_on_either_side():
    logits = torch.zeros(1, 1, 100)
    logits[..., 50] = 9.0
    lost = AlphaFair(prior=False).scores(evidence(logits))
    assert (lost[0] < lost[0, 0] - 1).nonzero().flatten().tolist() == [*range(34, 50), *range(51, 67)]


def test_small_keys_and_early_places_are_preferred():
    r = steps.structural_prior(torch.ones(1, 50))
    assert (r[0, 1:] < r[0, :-1]).all()
    assert r[0, 49] < r[0, 48] - 5  # the last candidate is about to be covered by the recent ones anyway
    norms = torch.ones(1, 50)
    norms[0, 20] = 0.25
    near(steps.structural_prior(norms)[0, 20] - steps.structural_prior(norms)[0, 19],
         r[0, 20] - r[0, 19] + math.log(2), atol=1e-4)  # fmt: skip


def test_persistence_prefers_what_was_selected_last():
    flat = torch.zeros(1, 1, 40)
    assert chosen(Persist().scores(evidence(flat, last=[{3: 0.0, 17: -9.0}])), 2) == [[3, 17]]
    assert chosen(Persist().scores(evidence(flat, last=[{3: 0.0, 17: -math.inf}])), 2) == [[3, 39]]
    assert chosen(Persist().scores(evidence(flat)), 2) == [[38, 39]]


def test_peaks_are_weights_and_not_shares_and_fade():
    """A row that looks at nothing but what is recent does not replace what an earlier one found."""
    logits = torch.zeros(1, 1, 20)
    logits[..., 4] = 3.0
    elsewhere, nowhere = torch.tensor([[[-9.0, 20.0]]]), torch.tensor([[[-9.0, -9.0]]])
    last = [{15: 0.5}]
    faded = Peaks(1, 0.5).scores(evidence(logits, last=last, around=elsewhere))
    assert chosen(faded, 1) == [[15]]
    near(faded[0, 15], 0.25)
    assert chosen(Peaks(1, 0.5).scores(evidence(logits, last=last, around=nowhere)), 1) == [[4]]
    assert not Peaks(1, 0.0).memory


def test_peaks_reach_what_follows():
    logits = torch.full((1, 1, 20), -9.0)
    logits[..., 8] = 9.0
    assert chosen(Peaks(4, 0.0).scores(evidence(logits)), 4) == [[8, 9, 10, 11]]


def test_the_highest_peak_is_followed_further_before_a_low_one_is_and_after_a_high_one():
    """A quarter of the attention reaches three times as far; places of more than a quarter of the highest are first."""
    logits = torch.full((1, 1, 40), -9.0)
    logits[..., 8], logits[..., 30] = math.log(0.8), math.log(0.15)
    assert chosen(Peaks(4, 0.0).scores(evidence(logits)), 12) == [[*range(8, 20)]]
    assert chosen(Peaks(4, 0.0, far=0.0).scores(evidence(logits)), 8) == [[*range(8, 12), *range(30, 34)]]
    logits[..., 8], logits[..., 30] = math.log(0.5), math.log(0.45)
    assert chosen(Peaks(4, 0.0).scores(evidence(logits)), 12) == [[*range(8, 16), *range(30, 34)]]


def test_rows_before_a_question_do_not_outvote_it():
    """Of 128 rows the last eight look for unit 5; each of those before them looks a little at unit 20."""
    logits = torch.full((1, 128, 40), -9.0)
    logits[:, :-8, 20], logits[:, -8:, 5] = 0.0, 5.0
    around = torch.zeros(1, 128, 2)
    around[:, :-8, 1] = 1.5  # what is recent
    asked = evidence(logits, around=around, behind=torch.arange(128).flip(0))
    assert chosen(Peaks(1, 0.0, far=0.0, half_life=None).scores(asked), 1) == [[20]]
    assert chosen(Peaks(1, 0.0, far=0.0, half_life=16).scores(asked), 1) == [[5]]
