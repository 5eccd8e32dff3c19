"""Quest against masks over the stock forward, and its bounds against keys looked at anew."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch

from covering import covered
from read_reference import OVER_OTHERS, PROMPT, assert_equals_reference, run, small_llm
from winnow import Plan
from winnow.cache.view import View
from winnow.errors import PlanError
from winnow.kernels.pages import highest
from winnow.policies.read.base import Pages, Row
from winnow.policies.read.quest import Bounds, Quest, QuestReader
from winnow.runtime.heads import HeadsConfig, RetainingHeads


def chosen(policy, numbers, q, k):
    """[kv_heads, units] bool: the best pages and the newest, and how many bounds that took. numbers: of the units."""
    page = policy.page
    newest = numbers[-1] // page
    pages = [p for p in range(newest) if p * page >= numbers[0]]
    read = torch.tensor([[n // page == newest for n in numbers]]).repeat(len(k), 1)
    for head, (queries, keys) in enumerate(zip(q.float(), k.float(), strict=True)):
        score = {}
        for p in pages:
            inside = keys[p * page - numbers[0] :][:page]
            least, greatest = inside.min(0).values, inside.max(0).values
            score[p] = max(float(torch.maximum(query * least, query * greatest).sum()) for query in queries)
        best = sorted(pages, key=lambda p: -score[p])[: policy.budget // page - 1]
        read[head] |= torch.tensor([n // page in best for n in numbers])
    return read, len(pages)


def rule(policy):
    def reads(look):
        if look.layer < policy.dense_layers or look.units <= policy.budget:
            return look.everything(), 0
        return chosen(policy, range(look.first, look.first + look.units), look.q, look.k)

    return reads


@covered(
    (("page", "budget", "dense_layers"), [(3, 6, 1), (1, 5, 0), (4, 36, 0)]),
    name=["llama", "mistral", "gemma2", "smollm3", "gpt_oss"],
)
def test_equals_the_reference(name, page, budget, dense_layers, text):
    policy = Quest(page=page, budget=budget, dense_layers=dense_layers)
    counts = assert_equals_reference(name, policy, rule(policy), text)
    shape = small_llm(name).decoder.shape
    if any(shape.windows):
        return  # a page that has partly left its window: the reference counts
    for n, read in enumerate(counts, PROMPT + 1):
        narrow = n if n <= budget else budget - page + (n - 1) % page + 1 + (n - 1) // page
        assert read == shape.kv_heads * (dense_layers * n + (shape.layers - dense_layers) * narrow)


def test_bytes_in_closed_form(text):
    llm = small_llm()
    _, _, state = run(llm, Plan(read=Quest(page=3, budget=12, dense_layers=1)), text)
    state.measure()
    shape = llm.decoder.shape
    bounds = (shape.layers - 1) * ((len(text) - 1) // 3) * shape.unit_bytes
    assert state.stats.aux_bytes == shape.kv_heads * bounds


class Checked(QuestReader):
    """Looks at all keys anew at every step."""

    checks = 0

    def select(self, row, views):
        narrowed = super().select(row, views)
        if narrowed is views:
            return views
        view, (*others, pages, newest) = views[-1], narrowed
        assert others == views[:-1]
        return [*others, Looked(**vars(pages), policy=self._policy, row=row, seen=view, newest=newest), newest]


@dataclass(frozen=True)
class Looked(Pages):
    policy: Quest
    row: Row
    seen: View
    newest: View

    def chosen(self, layer, queries):
        got, view, query = super().chosen(layer, queries), self.seen, queries[-1]
        keys = self.row.ready(view).keys
        numbers = range(self.row.dropped + view.place, self.row.dropped + view.place + view.units)
        read, bounds = chosen(self.policy, numbers, query.unflatten(0, (len(keys), -1)), keys)
        assert (self.besides, self.units) == (bounds, got.units)
        assert (got.window, got.query_limit) == (view.window, view.query_limit)
        places, newest = (each.positions.expand(len(keys), -1) for each in (view, self.newest))
        for head, units in enumerate(read):
            assert got.positions[head].tolist() + newest[head].tolist() == places[head, units].tolist()
            assert torch.equal(got.keys[head], keys[head, units][: got.units])
            assert torch.equal(got.values[head], view.values[head, units][: got.units])
        Checked.checks += 1
        return got


@covered(**OVER_OTHERS)
def test_over_caches_that_others_change(others, name, text, monkeypatch):
    llm = small_llm(name)
    llm.decoder.default_heads = RetainingHeads.random(HeadsConfig.of(llm.model, llm.decoder.shape, width=8), seed=1)
    policy = Quest(page=2, budget=6, dense_layers=0)
    plan = Plan.parse(f"{others} + quest(page=2, budget=6, dense_layers=0)")
    monkeypatch.setattr(Checked, "checks", 0)
    llm.decoder.program.rows = 0  # where a query is known before the layer's attention, to be looked at
    got, counts, _ = run(llm, plan, text, reader=Checked(policy))
    assert not got.isnan().any()
    assert len(counts) == len(text) - PROMPT
    assert Checked.checks >= 2 * len(counts)  # in two layers at least


@torch.inference_mode()
def test_bounds_bound():
    """No key of a page matches better than its bound, and where all keys are equal the bound is the match."""
    torch.manual_seed(3)
    q, k = torch.randn(6, 32), torch.randn(2, 40, 32)
    k[:, 8:16] = k[:, 8:9]
    scores = highest(q, *Bounds(8).follow(partial(of_units, k), 0, 5))
    exact = (q.view(2, 3, 32) @ k.mT).amax(1).view(2, 5, 8).amax(-1)
    assert (scores >= exact - 1e-4).all()
    torch.testing.assert_close(scores[:, 1], exact[:, 1])
    assert (scores[:, 0] > exact[:, 0]).all()


def of_units(keys, start, stop):
    return keys[:, start:stop]


def test_a_page_is_looked_at_once_and_forgotten_when_it_is_gone():
    torch.manual_seed(3)
    keys, bounds = torch.randn(2, 400, 4), Bounds(4)
    for start, stop in [(0, 3), (0, 4), (2, 9), (3, 9), (20, 24), *((i, i + 5) for i in range(21, 96))]:
        given = keys[:, start * 4 : stop * 4].clone()
        given[:, : max(0, 4 * (bounds._stop - start))] = torch.nan
        least, greatest = bounds.follow(partial(of_units, given), start, stop)
        pages = keys[:, start * 4 : stop * 4].unflatten(1, (-1, 4))
        assert torch.equal(least, pages.amin(2))
        assert torch.equal(greatest, pages.amax(2))
    assert bounds._held.shape[2] <= 9
    assert bounds.peak_nbytes == 7 * 2 * 2 * 4 * 4  # seven pages at once, two bounds, two heads


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"page": 0}, "page=0 must be at least 1"),
        ({"budget": 16}, "budget=16 leaves no page .*page=16 use at least budget=32"),
        ({"budget": 0}, "use at least budget=32"),
        ({"page": 16, "budget": 100}, "budget=100 is not a whole number .* use budget=96"),
        ({"dense_layers": -1}, "dense_layers=-1 must be at least 0"),
    ],
)
def test_bad_parameters_are_refused(parameters, says):
    with pytest.raises(PlanError, match=says):
        Quest(**parameters)


def test_more_dense_layers_than_the_model_has():
    with pytest.raises(PlanError, match="dense_layers=5 is more than the model's 4 layers"):
        Plan.parse("quest(dense_layers=5)").validate(small_llm().decoder.shape)
