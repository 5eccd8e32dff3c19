"""Sketch against masks over the stock forward, and what it knows of keys against keys looked at anew."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch

from covering import covered
from read_reference import OVER_OTHERS, PROMPT, assert_equals_reference, run, small_llm
from winnow import Plan
from winnow.cache.view import View
from winnow.errors import PlanError
from winnow.kernels.layers import tables as t
from winnow.kernels.signs import estimates, rotation
from winnow.policies.read.base import Ranked
from winnow.policies.read.sketch import Sketch, Sketches, SketchReader
from winnow.runtime.heads import HeadsConfig, RetainingHeads


def matches(q, k, centre):
    """How well queries [group, head_dim] match keys [units, head_dim], by the signs of these: the best of the group."""
    turn = rotation(k.shape[1], k.device).double()
    y = (k.double() - centre.double()) @ turn
    length = (y * y).sum(1) / y.abs().sum(1)
    found, asked = q.double() @ centre.double(), q.double() @ turn
    step = asked.abs().amax(1, keepdim=True) / 127
    best = (found[:, None] + (asked / step).round() * step @ y.sign().T * length.bfloat16().double()).amax(0)
    return best.round(decimals=9)  # keys with the same code are equal, and the first of them is read


def chosen(policy, first, q, k, centre):
    """[kv_heads, units] bool: what is read; and how many units are sketched. first: the number of the first unit."""
    units = k.shape[1]
    stop = (first + units - policy.recent) // policy.lag * policy.lag - first
    count = policy.budget - policy.sink - (units - stop)
    read = torch.zeros(k.shape[:2], dtype=torch.bool)
    read[:, : policy.sink] = read[:, stop:] = True
    for head in range(len(k)):
        best = matches(q[head], k[head, policy.sink : stop], centre[head]).sort(descending=True, stable=True).indices
        read[head, policy.sink + best[:count]] = True
    return read, stop - policy.sink


def rule(policy, shape):
    """Of stock attention; a layer's centre is of the keys that it sketches first: as the prompt ends, if it can."""
    centres = {}

    def reads(look):
        if look.units <= policy.budget:
            return look.everything(), 0
        own = look.row == PROMPT and look.units > policy.budget + 1  # which came after the prompt
        at_first = look.units - own
        sketched = (look.first + at_first - policy.recent) // policy.lag * policy.lag - look.first
        centre = centres.setdefault(look.layer, look.k[:, policy.sink : sketched].mean(1))
        read, sketched = chosen(policy, look.first, look.q, look.k, centre)
        return read, -(-sketched * (2 * shape.head_dim + 32) // (16 * shape.unit_bytes))

    return reads


@covered(
    (("budget", "sink", "recent", "lag"), [(12, 2, 4, 4), (9, 0, 1, 1), (20, 1, 2, 17), (36, 4, 8, 16)]),
    name=["llama", "mistral", "gemma2", "smollm3", "gpt_oss"],
)
def test_equals_the_reference(name, budget, sink, recent, lag, text):
    policy = Sketch(budget=budget, sink=sink, recent=recent, lag=lag)
    shape = small_llm(name).decoder.shape
    counts = assert_equals_reference(name, policy, rule(policy, shape), text)
    if any(shape.windows):
        return  # the reference counts where units leave a window
    for n, read in enumerate(counts, PROMPT + 1):
        sketched = n - sink - recent - (n - recent) % lag
        besides = -(-sketched * (2 * shape.head_dim + 32) // (16 * shape.unit_bytes))
        assert read == shape.layers * shape.kv_heads * (n if n <= budget else budget + besides)


def test_bytes_in_closed_form(text):
    llm = small_llm()
    _, _, state = run(llm, Plan(read=Sketch(budget=12, sink=2, recent=3, lag=4)), text)
    state.measure()
    shape = llm.decoder.shape
    blocks = -(-((len(text) - 3) // 4 * 4) // 16)  # of sixteen units, from the first unit on
    assert state.stats.aux_bytes == shape.layers * shape.kv_heads * (
        blocks * (2 * shape.head_dim + 32) + 4 * shape.head_dim
    )


class Checked(SketchReader):
    """Looks at all keys anew at every step."""

    checks = 0

    def select(self, row, views):
        narrowed = super().select(row, views)
        if narrowed is views:
            return views
        *front, ranked, newest = narrowed
        assert front[: len(views) - 1] == views[:-1]
        parts = {name: getattr(ranked, name) for name in ("view", "count", "known", "besides")}
        looked = Looked(**parts, reader=self, first=row.dropped + views[-1].place, row=row, seen=views[-1])
        return [*front, looked, newest]


@dataclass(frozen=True)
class Looked(Ranked):
    reader: SketchReader
    first: int
    row: object
    seen: View

    def chosen(self, layer, queries):
        got, view = super().chosen(layer, queries), self.seen
        keys, policy = self.row.ready(view).keys, self.reader._policy
        centre = self.reader._sketches[layer]._centre
        read, sketched = chosen(policy, self.first, queries[-1].unflatten(0, (len(keys), -1)), keys, centre)
        inner = slice(policy.sink, policy.sink + sketched)
        assert (self.view.units, self.units) == (sketched, got.units)
        assert (got.window, got.query_limit) == (view.window, view.query_limit)
        for head, units in enumerate(read[:, inner]):
            assert torch.equal(got.keys[head], keys[head, inner][units])
            assert torch.equal(got.values[head], view.values[head, inner][units])
        Checked.checks += 1
        return got


@covered(**OVER_OTHERS)
def test_over_caches_that_others_change(others, name, text, monkeypatch):
    llm = small_llm(name)
    llm.decoder.default_heads = RetainingHeads.random(HeadsConfig.of(llm.model, llm.decoder.shape, width=8), seed=1)
    policy = Sketch(budget=6, sink=1, recent=1, lag=2)
    plan = Plan.parse(f"{others} + sketch(budget=6, sink=1, recent=1, lag=2)")
    monkeypatch.setattr(Checked, "checks", 0)
    llm.decoder.program.rows = 0  # where a query is known before the layer's attention, to be looked at
    reader = Checked(policy, plan.read.reader(llm.decoder.shape, llm.services, PROMPT)._share)
    got, counts, _ = run(llm, plan, text, reader=reader)
    assert not got.isnan().any()
    assert len(counts) == len(text) - PROMPT
    assert Checked.checks >= 2 * len(counts)  # in two layers at least


@torch.inference_mode()
def test_estimates_are_near_and_without_bias():
    """Over many keys the mean error of an estimate is near 0, and what is read holds most of what matters."""
    torch.manual_seed(3)
    keys, query = 2 + torch.randn(1, 6000, 64), torch.randn(2, 64)
    signs = Sketches().follow(partial(of_units, keys), 0, 6000)
    error = estimates(query, signs)[0] - query @ keys[0].T
    assert error.mean(1).abs().max() < 4 * error.std() / 6000**0.5 + 0.02  # lengths have eight bits
    assert error.std() < 0.8 * query.norm(dim=1).max()  # of products that spread as far as the query is long


def of_units(keys, start, stop):
    return keys[:, start:stop]


def test_a_key_is_looked_at_once_and_forgotten_when_it_is_gone():
    torch.manual_seed(3)
    keys, sketches = torch.randn(2, 400, 4), Sketches()
    whole = Sketches()
    query = torch.randn(2, 4)
    everything = None
    for start, stop in [(0, 9), (0, 12), (5, 37), (33, 40), (38, 70), *((i, i + 20) for i in range(60, 380, 7))]:
        given = keys[:, start:stop].clone()
        given[:, : max(0, sketches._stop - start)] = torch.nan
        signs = sketches.follow(partial(of_units, given), start, stop)
        if everything is None:
            whole.follow(partial(of_units, keys), 0, 9)  # the centre is of these
            everything = estimates(query, whole.follow(partial(of_units, keys), 0, 400))
        assert torch.equal(estimates(query, signs), everything[..., start:stop])
    assert sketches._codes.shape[1] <= 6
    assert sketches.peak_nbytes == 2 * (3 * (8 + 2 * 16) + 4 * 4)  # three blocks at once, two heads, four channels


def test_a_fork_asks_its_own_memory():
    keys, sketches = torch.randn(2, 50, 4), Sketches()
    signs = sketches.follow(partial(of_units, keys), 0, 40)
    told = signs.facts
    assert sketches.follow(partial(of_units, keys), 0, 40).facts is told  # once, as long as nothing comes
    twin = sketches.fork()
    other = twin.follow(partial(of_units, keys), 0, 40)
    assert (other.facts[:, [t.CODES, t.LENGTHS]] != told[:, [t.CODES, t.LENGTHS]]).all()
    assert torch.equal(other.codes, signs.codes)
    assert torch.equal(other.lengths, signs.lengths)
    twin.follow(partial(of_units, keys), 0, 50)
    assert torch.equal(sketches.follow(partial(of_units, keys), 0, 40).codes, signs.codes)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"budget": 80}, "sink=4, recent=64 and lag=16 leave nothing of budget=80 .* use at least budget=84"),
        ({"budget": 0}, "budget=0 must be at least 1"),
        ({"sink": -1}, "sink=-1 must be at least 0"),
        ({"recent": 0}, "recent=0 must be at least 1"),
        ({"lag": 0}, "lag=0 must be at least 1"),
    ],
)
def test_bad_parameters_are_refused(parameters, says):
    with pytest.raises(PlanError, match=says):
        Sketch(**parameters)
