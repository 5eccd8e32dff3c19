"""Steadiness of the support: hand-made attention, the stock model's own attention row by row, prompts that add up."""

import math
from types import SimpleNamespace
from typing import get_args, get_type_hints

import pytest
import torch

from digits import Digits
from models import WINDOW, small_model
from tiny import tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, SamplingParams
from winnow.diagnosis.shadow import Shadow
from winnow.diagnosis.support import SupportObserver, held, support_prompts, support_tasks
from winnow.diagnosis.support_figures import MEASURES, Steps, summarise_support
from winnow.errors import CapacityError, InputError, PlanError
from winnow.policies.base import ModelShape
from winnow.policies.read.base import Reader
from winnow.policies.read.slowfast import SlowFast
from winnow.policies.read.trigger import Boundaries
from winnow.runtime.observer import Attended

PLAN = SlowFast(
    budget=3, sink=1, recent=2, bootstrap=2, interval=4, trigger="periodic",
    selector="attention", recent_mode="sliding",
)  # fmt: skip
NEW = 14
GREEDY = SamplingParams(max_tokens=NEW, ignore_eos=True)
NONE = pytest.approx(math.nan, nan_ok=True)


def test_what_positions_hold():
    values = torch.tensor([[0.5, 0.2, 0.2, 0.1], [0.1, 0.1, 0.0, 0.8]])
    inside = held(values, 10, torch.tensor([[10, 12], [13, 12]]))
    assert inside.tolist() == pytest.approx([0.7, 0.8])
    outside = held(values, 10, torch.tensor([[9, 11, 14], [0, 2**40, 13]]))
    assert outside.tolist() == pytest.approx([0.2, 0.8])


def shape(kv_heads=1, windows=(None,)):
    counts = dict.fromkeys(("q_heads", "head_dim", "hidden", "mlp", "vocab", "max_positions", "element_bytes"), 2)
    return ModelShape(
        layers=len(windows), kv_heads=kv_heads, windows=windows, rotations=("a",) * len(windows), **counts
    )


def watched(rows, last, fresh, *, budget, prompt, windows=(None,)):
    """What an observer notes of hand-made rows of attention, [q_heads, units] a step. last, fresh: as of a Shadow."""
    observer = SupportObserver(shape(windows=windows), SlowFast(budget=budget, sink=0, recent=1))
    shadow = Shadow(Reader(), Boundaries(frozenset()), 0)
    sequence = SimpleNamespace(reader=shadow, prompt=prompt)
    for step, row in enumerate(rows):
        weights = torch.tensor(row)
        units, first = weights.shape[1], prompt + step - weights.shape[1]
        shadow.step, shadow.last, shadow.fresh = step, last.get(step, {}), fresh.get(step, {})
        part = SimpleNamespace(decode=step > 0, first=prompt + step - 1, rows=1, sequence=sequence)
        positions = torch.arange(first, first + units)
        observer.attended(Attended(0, part, [], [], lambda pair=(weights, positions): pair))
    return observer.steps


def of(steps, measure):
    return [float(each[MEASURES.index(measure), 0, 0]) for each in steps.values]


def test_hand_made_attention():
    rows = [
        [[0.1, 0.4, 0.5], [0.1, 0.6, 0.3]],  # means over the group: .1 .5 .4, support 1 2
        [[0.4, 0.1, 0.3, 0.2], [0.4, 0.1, 0.3, 0.2]],  # 0 2
        [[0.0, 0.5, 0.1, 0.4, 0.0], [0.0, 0.5, 0.1, 0.2, 0.2]],  # 1 3
        [[0.0, 0.6, 0.3, 0.1, 0.0, 0.0], [0.0, 0.6, 0.3, 0.1, 0.0, 0.0]],  # 1 2
    ]
    first, second = torch.tensor([[1, 2]]), torch.tensor([[0, 3]])
    last = {1: {0: first}, 2: {0: first}, 3: {0: second}}
    steps = watched(rows, last, {0: {0: first}, 2: {0: second}}, budget=2, prompt=3)
    assert of(steps, "overlap") == [NONE, 0.5, 0.0, 0.5]
    assert of(steps, "since") == [NONE, 0.5, 0.5, 0.5]  # with the prompt's twice, then with the second step's
    assert of(steps, "recall") == pytest.approx([math.nan, 0.4, 0.6, 0.1], nan_ok=True)
    assert of(steps, "fresh") == pytest.approx([0.9, math.nan, 0.3, math.nan], nan_ok=True)
    assert of(steps, "best") == pytest.approx([0.9, 0.7, 0.8, 0.9], nan_ok=True)
    assert [int(each[0]) for each in steps.distances] == [0, 1, 2, 1]


def test_a_window_drops_units_and_may_be_smaller_than_the_support():
    rows = [[[0.0, 0.1, 0.9], [0.0, 0.1, 0.9]], [[0.2, 0.5, 0.3], [0.2, 0.5, 0.3]]]  # positions 0-2, then 1-3
    last, fresh = {1: {0: torch.tensor([[0, 1]])}}, {0: {0: torch.tensor([[0, 1]])}}
    steps = watched(rows, last, fresh, budget=2, prompt=3, windows=(3,))
    assert of(steps, "overlap") == [NONE, 0.5]  # 1 2, then 2 3
    assert of(steps, "recall") == pytest.approx([math.nan, 0.2], nan_ok=True)  # position 0 has left
    small = watched(rows, last, fresh, budget=2, prompt=3, windows=(1,))
    assert of(small, "overlap") == [NONE, NONE]


def test_boundaries_are_first_tokens_of_sentences_however_close_and_whatever_the_trigger():
    tokens, dot, space = list("ab. cd.e. . f"), ord("."), ord(" ")
    shadow = Shadow(Reader(), Boundaries(frozenset([dot]), skipped=frozenset([space])), 0)
    at = []
    for known, token in enumerate(tokens, 1):
        shadow.begin(ord(token), known)
        at += [shadow.boundary]
    assert [place for place, start in enumerate(at) if start] == [4, 7, 12]


def made(boundary, distances, values, layers=1):
    """Steps of one layer and one head; values: measure -> one a step."""
    steps = Steps(PLAN, layers, 1)
    for step, (mark, distance) in enumerate(zip(boundary, distances, strict=True)):
        steps.begin(slow=mark, boundary=mark)
        steps.distances[-1][0] = distance
        for measure, of_steps in values.items():
            steps.note(0, measure, torch.tensor([of_steps[step]]))
    return steps


def test_figures_of_several_prompts_are_means_over_all_their_steps():
    nan = math.nan
    one = made(
        [False, False, True, False], [0, 1, 2, 1],
        {
            "overlap": [nan, 0.4, 0.1, 0.6], "since": [nan, 0.4, 0.2, 0.5], "recall": [nan, 0.9, 0.3, 0.8],
            "best": [1.0, 0.9, 0.8, 0.9], "fresh": [1.0, nan, 0.7, nan],
        },
    )  # fmt: skip
    other = made(
        [False, False], [0, 1],
        {"overlap": [nan, 0.8], "since": [nan, 0.9], "recall": [nan, 0.4], "best": [0.6, 0.6], "fresh": [0.4, nan]},
    )  # fmt: skip
    found = summarise_support([one, other])
    assert (found.prompts, found.steps, found.boundaries, found.slow) == (2, 4, 1, 1)
    [layer] = found.layers
    assert layer.overlap_inside == pytest.approx((0.6,))
    assert layer.overlap_boundary == pytest.approx((0.1,))
    assert layer.recall_inside == pytest.approx((0.7,))
    assert layer.recall_boundary == pytest.approx((0.3,))
    assert layer.best == pytest.approx((0.8,))  # not of the prompts' last tokens
    ages = [(a.distance, a.counted[0], a.overlap[0][0], a.recall[0][0], a.best[0][0]) for a in found.ages]
    expected = [(0, 3, 1.0, 0.7, 0.8), (1, 3, 0.6, 0.7, 0.8), (2, 1, 0.2, 0.3, 0.8)]
    assert [pytest.approx(each) for each in expected] == ages
    alone = summarise_support([other])
    assert alone.layers[0].overlap_boundary == (None,)
    assert alone.to_dict()["plan"].startswith("slowfast(budget=3,")


def naive(rows, prompt, window, heads, alpha):
    """Every measure of one layer, by hand. rows: [q_heads, text, text]; returns per step from 0 on {measure: heads}."""
    group, slow = heads[0] // heads[1], {0, 4, 8, 12}
    selected, before, chosen, refreshed, steps = {}, {}, {}, 0, []
    for step in range(rows.shape[1] - prompt + 1):
        now = prompt - 1 + step
        seen = [j for j in range(now + 1) if window is None or now - j < window]
        noted = {"distance": step - refreshed}
        for head in range(heads[1]):
            own = rows[head * group : (head + 1) * group]
            mass = {j: float(own[:, now, j].mean()) for j in seen}
            support = set(sorted(seen, key=lambda j: -mass[j])[: PLAN.budget])
            if step:
                read = (selected[head] & set(seen)) | set(seen[-PLAN.recent :])
                noted.setdefault("overlap", []).append(len(support & before[head]) / PLAN.budget)
                noted.setdefault("since", []).append(len(support & chosen[head]) / PLAN.budget)
                noted.setdefault("recall", []).append(sum(mass[j] for j in read))
            before[head] = support
            if step in slow:
                candidates = seen[PLAN.sink : len(seen) - PLAN.recent]
                voters = [now] if step else [now - 1, now]
                score = {j: power(own, voters, candidates, j, window, alpha) for j in candidates}
                best = sorted(candidates, key=lambda j: -score[j])[: PLAN.budget]
                selected[head], chosen[head] = set(seen[: PLAN.sink]) | set(best), support
                read = selected[head] | set(seen[-PLAN.recent :])
                noted.setdefault("fresh", []).append(sum(mass[j] for j in read))
        refreshed = step if step in slow else refreshed
        steps.append(noted)
    return steps


def power(own, voters, candidates, j, window, alpha):
    """The power mean over voting rows and query heads of the softmax over the candidates, up to a common factor."""
    total = 0.0
    for now in voters:
        for row in own[:, now].double():
            total += float(row[j] / row[candidates].sum()) ** alpha
    return total


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_figures_are_the_stock_models(family, text):
    llm = LLM(small_model(family), tokenizer=byte_tokenizer(), prefill_chunk=7)
    [done] = llm.generate([text], GREEDY)
    whole = [*text, *done.token_ids[:-1]]
    with torch.inference_mode():
        maps = small_model(family)(torch.tensor([whole]), output_attentions=True, use_cache=False).attentions
    [steps] = support_prompts(llm, [text], GREEDY, policy=PLAN)
    assert (len(steps.values), sum(steps.slow[1:])) == (NEW, 3)
    assert set(llm.decoder.shape.windows) == ({None} if family == "llama" else {None, WINDOW})
    for layer, window in enumerate(llm.decoder.shape.windows):
        expected = naive(maps[layer][0], len(text), window, (4, 2), PLAN._selector().alpha)
        for step, noted in enumerate(expected):
            for measure in ("overlap", "since", "recall", "fresh"):
                value = steps.values[step][MEASURES.index(measure), layer].tolist()
                wanted = noted.get(measure, [math.nan] * 2)
                assert value == pytest.approx(wanted, abs=1e-5, nan_ok=True), (layer, step, measure)
            if step:
                assert int(steps.distances[step][layer]) == noted["distance"]


@pytest.mark.parametrize("chunk", [1, 45, 47, 48, 100])
def test_the_chunk_changes_nothing(chunk, text):
    model = small_model("gemma2")
    whole, pieces = (
        next(support_prompts(LLM(model, tokenizer=byte_tokenizer(), prefill_chunk=size), [text], GREEDY, policy=PLAN))
        for size in (16, chunk)
    )
    torch.testing.assert_close(torch.stack(pieces.values), torch.stack(whole.values), rtol=0, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("selector", get_args(get_type_hints(SlowFast)["selector"]))
def test_every_selector_can_be_watched(selector, text):
    policy = SlowFast(
        budget=8, sink=1, recent=4, bootstrap=4, interval=5, min_gap=1, cooldown=0, trigger="sentence",
        selector=selector, layer_groups=2, publish_delay=1,
    )  # fmt: skip
    llm = LLM(small_model(), tokenizer=byte_tokenizer())
    [steps] = support_prompts(llm, [text], GREEDY, policy=policy)
    assert llm.generate([text], GREEDY)[0].token_ids  # and the watched model is as it was
    recall = torch.stack(steps.values)[1:, MEASURES.index("recall")]
    best = torch.stack(steps.values)[1:, MEASURES.index("best")]
    assert (recall > 0.05).all()
    assert (recall <= best + 1e-6).all()
    ages = [age.distance for age in summarise_support([steps]).ages]
    assert ages == list(range(11))  # each layer is refreshed by every second slow step


def test_watching_changes_no_token(text):
    llm = LLM(small_model("gemma2"), tokenizer=byte_tokenizer())
    fed = []
    ordinary = Shadow.begin

    def begin(self, token, known):
        fed.append(token)
        ordinary(self, token, known)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shadow, "begin", begin)
        list(support_prompts(llm, [text], GREEDY, policy=PLAN))
    assert fed == llm.generate([text], GREEDY)[0].token_ids[:-1]


@pytest.mark.parametrize(
    ("family", "ids", "params", "policy", "words"),
    [
        ("llama", [5] * 20, GREEDY, SlowFast(budget=18, sink=1, recent=2), "selects from 21 units .* 20 tokens"),
        ("phi3", [5] * 40, GREEDY, SlowFast(budget=8, sink=1, recent=2), f"no layer has more than {WINDOW}"),
        ("llama", [5] * 40, SamplingParams(max_tokens=1), PLAN, "max_tokens=1"),
        ("llama", [5] * 40, SamplingParams(temperature=1.0), PLAN, "temperature=1"),
        ("llama", [5] * 600, GREEDY, PLAN, "512 positions"),
        ("llama", [5] * 40, GREEDY, SlowFast(budget=3, layer_groups=9), "layer_groups=9 .* 4 layers"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_any_work(family, ids, params, policy, words, text, monkeypatch):
    def refuse(*arguments, **keywords):
        raise AssertionError("work was done before the error")

    monkeypatch.setattr("winnow.diagnosis.support.observe", refuse)
    llm = LLM(small_model(family), tokenizer=byte_tokenizer())
    with pytest.raises((InputError, CapacityError, PlanError), match=words):
        support_prompts(llm, [text, ids], params, policy=policy)


def test_sentences_need_tokens_that_end_them(text):
    with pytest.raises(InputError, match="no tokenizer with a token that ends a sentence"):
        support_prompts(LLM(small_model()), [text], GREEDY, policy=PLAN)


def test_tasks_are_checked_and_the_budget_follows_the_length():
    llm = LLM(tiny_model(), tokenizer=byte_tokenizer())
    with pytest.raises(CapacityError):
        support_tasks(llm, [Digits()], 32768, 1)
    with pytest.raises(InputError, match=r"budget=4 .* use smaller ones"):
        support_tasks(llm, [Digits()], 64, 1)  # the default's recent units are more than these
    found = list(support_tasks(llm, [Digits()], 400, 2, max_tokens=4, ignore_eos=True))
    assert [each.policy.budget for each in found] == [25, 25]
    assert summarise_support(found).steps == 6
    for each in found:
        del each.values[1:], each.distances[1:]
    with pytest.raises(InputError, match="2 answers without a decode step"):
        summarise_support(found)
