"""Logits from processes, and what is made of them."""

import math

import numpy as np
import pytest
from recipes.packed.forced import Job, compare, measure, over_all

from tiny import tiny_model
from winnow import LLM, Plan
from winnow.evaluation.peers.registry import peer_arms, plan_arms
from winnow.evaluation.peers.weights import weights_of

IDS = [5 + place * 37 % 200 for place in range(60)]


def test_figures_are_those_of_the_distributions():
    reference = np.log(np.array([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6], [1, 1, 1]], np.float32))
    other = np.log(np.array([[0.25, 0.7, 0.05], [0.2, 0.2, 0.6], [1, 2, 3]], np.float32)) + 7
    found = compare("job", "kind", reference, other, [0, 1, 2])
    assert (found.tokens, found.top1) == (2, 0.5)
    kl = 0.5 * math.log(0.5 / 0.25) + 0.25 * math.log(0.25 / 0.7) + 0.25 * math.log(0.25 / 0.05)
    assert found.kl == pytest.approx(kl / 2)
    assert found.nll_reference == pytest.approx(-(math.log(0.25) + math.log(0.6)) / 2)
    assert found.nll == pytest.approx(-(math.log(0.7) + math.log(0.6)) / 2)
    assert found.ratio == pytest.approx((0.25 / 0.7) ** 0.5)
    longer = compare("job", "other", reference[:1], reference[:1], [0, 1])
    [every] = over_all([found, longer])
    assert (every.tokens, every.kind, every.top1) == (3, "all", pytest.approx(2 / 3))


@pytest.mark.usefixtures("forking")
def test_whole_forwards_and_steps_of_winnow_and_transformers_agree(tmp_path):
    llm = LLM(tiny_model())
    [full], [stock] = plan_arms([Plan()], 16), peer_arms(["hf"], {})
    jobs = [Job(full, "float32", fed=True), Job(stock, "float32"), Job(stock, "bfloat16")]
    with weights_of(llm, [full, stock]) as weights:
        found = list(measure(weights, Job(full, "float32"), jobs, {"noise": IDS}, tmp_path))
    assert [(each.job, each.tokens) for each in found] == [
        ("full, float32, token by token", 59),
        ("hf, float32", 59),
        ("hf, bfloat16", 59),
    ]
    assert all(each.top1 == 1 and abs(each.kl) < 1e-9 for each in found[:2])
    assert found[2].kl > 1e-6
    expected = llm.logits(IDS).log_softmax(-1)[range(59), IDS[1:]]
    assert found[0].nll_reference == pytest.approx(-expected.mean().item(), rel=1e-5)
