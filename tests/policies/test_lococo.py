"""LoCoCo, by its own scores and by Locret's, against an independent restatement, and without what is learnt; counts."""

import random
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import pytest
import torch

from cache_of_scores import cache_of
from covering import covered
from driving import decode, prefill
from lococo_reference import Reference, run
from models import small_model
from trials import fresh, small_convolutions, small_llm
from winnow import LLM, Plan, SamplingParams
from winnow.errors import ModelError, PlanError
from winnow.policies.base import LayerContext
from winnow.policies.compute.base import Deep
from winnow.policies.keep.base import Moment
from winnow.policies.keep.best import best
from winnow.policies.keep.lococo import LoCoCo, LoCoCoLocret
from winnow.runtime.convolutions import Convolutions

PROMPT, TOKENS = 31, 60
LAYER = LayerContext(0, 4, None)


@pytest.fixture
def ids():
    """Different tokens: in the first layer heads score a token alike wherever it stands."""
    return random.Random(5).sample(range(3, 97), TOKENS)


def through(llm, policy, ids):
    """Logits after the prompt and every later token, and what every layer holds then."""
    state, prompt = fresh(llm, Plan(keep=policy), ids, PROMPT)
    rows, held = [prefill(llm.decoder, state, prompt, llm.prefill_chunk)], [[cache.length for cache in state.caches]]
    for token in ids[PROMPT:]:
        rows.append(decode(llm.decoder, [(state, token)])[0])
        held.append([cache.length for cache in state.caches])
    return torch.stack(rows), held


@covered(
    policy=[
        LoCoCo(budget=9, chunk=6, decode_chunk=3),
        LoCoCo(budget=9, chunk=6, recent=2, decode_chunk=3),
        LoCoCo(budget=7, chunk=5),  # the authors' slack: compressed only once the prompt is long
        LoCoCo(budget=12, chunk=4, decode_chunk=7),
        LoCoCo(budget=14, chunk=40, decode_chunk=17),
        LoCoCo(budget=30, chunk=8, decode_chunk=9),  # the prompt is compressed after its end
        LoCoCoLocret(budget=9, chunk=6, decode_chunk=3),
        LoCoCoLocret(budget=7, chunk=5),
        LoCoCoLocret(budget=12, chunk=4, recent=3, decode_chunk=7),
    ],
    name=["llama", "llama-9-3", "llama-8-8"],
    prefill_chunk=[1, 7, 64],
)
def test_equals_the_reference(policy, name, prefill_chunk, ids, monkeypatch):
    llm = small_llm(name)
    monkeypatch.setattr(llm, "prefill_chunk", prefill_chunk)
    heads = llm.decoder.heads(None) if isinstance(policy, LoCoCoLocret) else None
    reference = Reference(
        llm.model, llm.decoder.convolutions(None), budget=policy.budget, recent=policy.recent,
        slack=policy.decode_chunk - 1, heads=heads,
    )  # fmt: skip
    expected, lengths = run(reference, ids, PROMPT, policy.chunk)
    got, held = through(llm, policy, ids)
    assert held == [[length] * 4 for length in lengths]
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    assert min(lengths) == policy.budget  # something was compressed
    assert (got - llm.logits(ids)[PROMPT - 1 :]).abs().max() > 1e-3


@dataclass(frozen=True)
class Heaviest(LoCoCo):
    """The same without sums: as many units, those of the highest scores."""

    keeps_sums: ClassVar[bool] = False

    def prepare(self, services, ids):
        pass

    def merger(self, services):
        return None

    def select(self, cache, moment):
        return best(cache.live_scores(), self.budget) if cache.length > self.budget else None


def one_hot_llm(name="llama"):
    """Convolutions that have no share in what is summed: every sum is its seed."""
    llm = LLM(small_model(name), prefill_chunk=10)
    llm.decoder.default_convolutions = Convolutions.random(small_convolutions(llm).config, seed=1, share=0.0)
    llm.decoder.default_heads = small_llm(name).decoder.default_heads
    return llm


@pytest.mark.parametrize("settings", [{"budget": 9, "chunk": 6, "decode_chunk": 3}, {"budget": 7, "chunk": 5}])
@pytest.mark.parametrize("name", ["llama", "llama-9-3", "gemma2"])
def test_one_hot_sums_are_the_eviction_of_all_but_the_highest_scores(settings, name, ids):
    """Also in a family that has sliding windows in every other layer."""
    llm = one_hot_llm(name)
    got, held = through(llm, LoCoCo(**settings), ids)
    expected, lengths = through(llm, Heaviest(**settings), ids)
    assert held == lengths
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("policy", "same"),
    [
        ("lococo(budget=9, chunk=100, decode_chunk=None)",
         "h2o(budget=9, chunk=None, recent=0, local=0, decode_chunk=None)"),
        ("lococo_locret(budget=9, chunk=100, decode_chunk=None)",
         "locret(budget=9, chunk=None, sink=0, local=0, positions='original')"),
    ],
)  # fmt: skip
def test_one_hot_sums_of_one_compression_are_h2o_and_locret(policy, same, ids):
    llm = one_hot_llm()
    got, expected = (llm.logits(ids, decode_from=PROMPT, plan=plan) for plan in (policy, same))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["lococo", "lococo_locret"])
@pytest.mark.parametrize("decode_chunk", [17, None])
def test_a_prompt_that_fits_is_read_whole(name, decode_chunk, ids):
    llm, slack = small_llm("llama"), 16 if decode_chunk else 0
    plan = f"{name}(budget={PROMPT - slack}, chunk=8, decode_chunk={decode_chunk})"
    got = llm.logits(ids[:PROMPT], decode_from=PROMPT, plan=plan)
    torch.testing.assert_close(got, llm.logits(ids[:PROMPT])[-1:], rtol=0, atol=1e-5)
    assert Plan.parse(plan).keep.next_eviction(0, PROMPT) in (None, PROMPT + 1)
    one_less = Plan.parse(plan.replace(f"budget={PROMPT - slack}", f"budget={PROMPT - slack - 1}"))
    assert one_less.keep.next_eviction(0, PROMPT) == PROMPT


def simulated(policy, prompt, new):
    """After how many tokens a layer is compressed, the most that it holds, and what it holds after every forward."""
    ends = [*range(policy.chunk, prompt, policy.chunk), prompt, *range(prompt + 1, prompt + new + 1)]
    slack = 1 if policy.decode_chunk is None else policy.decode_chunk
    held, known, most, times, after = 0, 0, 0, [], {}
    for end in ends:
        held, known = held + end - known, end
        most = max(most, held)
        if held >= policy.budget + slack and (end <= prompt or policy.decode_chunk is not None):
            times.append(end)
            held = policy.budget
        after[end] = held
    return times, most, after


def test_times_and_bounds_are_those_of_the_step_taken_literally():
    """Every compression, what is held at most, and from which row on rows vote."""
    cases = product((4, 9, 14), (1, 3, 6, 20), (None, 1, 2, 3, 7, 17), range(1, 45), (0, 1, 5, 40))
    for budget, chunk, decode_chunk, prompt, new in cases:
        policy = LoCoCo(budget=budget, chunk=chunk, decode_chunk=decode_chunk)
        times, most, _ = simulated(policy, prompt, new)
        found, known = [], 0
        while (end := policy.next_eviction(known, prompt)) is not None and end <= prompt + new:
            found.append(end)
            begin = (end - 1) // chunk * chunk if end <= prompt else end - 1
            assert policy.voting_from(known, prompt) == begin
            assert policy.next_eviction(end - 1, prompt) == end
            known = end
        assert (found, policy.bound(prompt, new, LAYER)) == (times, most), (policy, prompt, new)


@pytest.mark.parametrize("prompt", [20, 31, 36])
def test_units_and_bytes_in_closed_form(prompt):
    llm, new = small_llm("llama"), 9
    policy = LoCoCo(budget=9, chunk=6, decode_chunk=3)
    params = SamplingParams(max_tokens=new, ignore_eos=True)
    [out] = llm.generate([[5 + i * 7 % 90 for i in range(prompt)]], params, plan=Plan(keep=policy))
    shape, fed = llm.decoder.shape, new - 1
    times, most, after = simulated(policy, prompt, fed)
    unit = shape.layers * shape.kv_heads * shape.unit_bytes
    assert times
    assert out.stats.peak_cache_bytes == most * unit == policy.bound(prompt, fed, LAYER) * unit
    assert out.stats.cache_bytes == after[prompt + fed] * unit
    read = sum(after[end - 1] + 1 for end in range(prompt + 1, prompt + fed + 1))
    assert out.stats.units_read == read * shape.layers * shape.kv_heads


def test_what_may_be_gone_on_from():
    policy = LoCoCo(budget=9, chunk=6, decode_chunk=3)
    assert [policy.prefix_stable(n, Deep.none(31)) for n in (5, 6, 29, 31, 40)] == [0, 6, 24, 30, 30]
    assert policy.prefix_stable(30, Deep.none(30)) == 24
    assert replace(policy, decode_chunk=None).prefix_stable(9, Deep.none(9)) == 0


class Telling:
    """Sums whose weights are all alike."""

    sums = 2

    def __call__(self, layer, keys, values, seeds):
        self.seeds, self.given = seeds, keys.shape
        return torch.full((len(keys), 2, keys.shape[1]), 1 / keys.shape[1])


def test_what_stays_and_where_sums_stand():
    scores = torch.tensor([[5.0, 0.0, 3.0, 1.0, 4.0, 2.0, 0.0]]).repeat(2, 1)
    merger, cache = Telling(), cache_of(scores)
    moment = Moment(100, 7, LAYER, merger=merger)
    sums = LoCoCo(budget=4).select(cache, moment)
    assert sums.kept.tolist() == [[0, 4]] * 2
    assert sums.parts.tolist() == [[1, 2, 3, 5, 6]] * 2
    assert merger.seeds.tolist() == [[1, 3]] * 2  # units 2 and 5, in their order
    cache.merge(sums)
    assert cache.live_positions().tolist() == [[0, 4, 2, 5]] * 2
    assert (cache.length, cache.appended, cache.live_scores().tolist()) == (4, 7, [[5.0, 4.0, 0.0, 0.0]] * 2)
    newest = LoCoCo(budget=4, recent=1).select(cache_of(scores), moment)
    assert newest.kept.tolist() == [[0, 6]] * 2
    by_heads = LoCoCoLocret(budget=4).select(cache_of(scores), moment)
    assert by_heads.score == torch.finfo(torch.float32).min


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("lococo(budget=0)", "budget=0 must be at least 1"),
        ("lococo(budget=5, recent=5)", "recent=5 must be below budget=5"),
        ("lococo(convolutions='')", "leave convolutions out"),
        ("lococo(by_head='adaptive')", "lococo has no parameter 'by_head'"),
        ("lococo(by_layer='pyramid')", "lococo has no parameter 'by_layer'"),
        ("lococo_locret(heads='')", "leave heads out"),
        ("lococo(budget=5, recent=1)", "leaves no unit .* recent=1 and the 4 sums .*; use a budget of at least 6"),
        ("speed(cutoff=2) + lococo", "layers hold those of some; use one of them"),
        ("lazyllm + lococo_locret", "layers hold those of some; use one of them"),
        ("lococo(decode_chunk=None) + quest", "sums of older ones stand behind them; use one of them"),
        ("lococo + quantized(group=16, residual=16)", "use lococo with decode_chunk=None, or one of them"),
    ],
)
def test_what_has_no_meaning_is_refused(plan, message):
    with pytest.raises(PlanError, match=message):
        small_llm("llama").prepare(plan)


def test_without_convolutions_it_is_refused():
    with pytest.raises(ModelError, match="no convolutions for LlamaForCausalLM; train some with winnow train lococo"):
        LLM(small_model()).prepare("lococo")


@pytest.mark.parametrize("name", ["lococo", "lococo_locret"])
def test_what_stays_after_a_prompt_can_be_stored_as_codes(name, ids):
    llm = small_llm("llama")
    plan = f"{name}(budget=20, chunk=6, decode_chunk=None)"
    exact = llm.logits(ids, decode_from=PROMPT, plan=plan)
    coded = llm.logits(ids, decode_from=PROMPT, plan=f"{plan} + quantized(bits=8, group=16, residual=0)")
    assert 0 < (coded - exact).abs().max() < 0.2
