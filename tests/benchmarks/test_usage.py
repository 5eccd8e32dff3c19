"""Token usage by stage, and the sparsity of attention."""

import random

import pytest
import torch
from benchmarks.sparsity import attention, mean_profiles, sparsity, token_shares
from benchmarks.usage import Generation, Stage, stages, still_running, usage

from digits import Digits
from models import small_model
from tiny import tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM
from winnow.errors import InputError

LAZY = "lazyllm(layers=[1], keep=0.5)"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(tiny_model(), tokenizer=byte_tokenizer(), prefill_chunk=16)


def test_usage_starts_at_prefills_share_and_never_falls(llm):
    made = list(usage(llm, LAZY, [Digits()], 64, 3, max_tokens=6))
    first, second = stages(made)
    assert (first.first, first.last, second.first, second.last) == (0, 0, 1, 1)
    assert set(first.share) == {1.0}
    assert second.share[0] == 33 / 64  # ceil(0.5 * 63) + 1
    assert list(second.share) == sorted(second.share)
    assert [each.new_tokens for each in made] == [len(each.computed) for each in made]


def test_layers_of_equal_shares_are_one_stage_and_ended_answers_keep_their_share():
    short = Generation("t", 0, 8, 1, [[8, 8, 4]])
    long = Generation("t", 1, 16, 3, [[16, 16, 4], [16, 16, 8], [16, 16, 12]])
    assert stages([short, long]) == [Stage(0, 1, (1.0, 1.0, 1.0)), Stage(2, 2, (0.375, 0.5, 0.625))]
    assert still_running([short, long]) == [2, 1, 1]


def test_measured_attention_is_the_stock_models():
    model = small_model("llama")  # eager attention, which can show its weights
    source = random.Random(5)
    ids = [source.randrange(3, 97) for _ in range(30)]
    found = attention(LLM(model, prefill_chunk=7), ids)
    with torch.inference_mode():
        maps = model(torch.tensor([ids]), output_attentions=True).attentions
    expected = torch.stack([layer[0, :, -1].mean(0) for layer in maps]).double()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_profiles_count_the_fewest_tokens_that_hold_a_mass(llm, monkeypatch):
    weights = torch.tensor([[0.1, 0.6, 0.05, 0.25], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64)
    monkeypatch.setattr("benchmarks.sparsity.attention", lambda *arguments: weights)
    [made] = sparsity(llm, [Digits()], 64, 1, masses=[0.5, 0.8])
    peaked, flat, mean = mean_profiles([made, made])
    assert (peaked.layer, flat.layer, mean.layer) == (0, 1, None)
    assert (peaked.holds, peaked.below_uniform) == ({"0.5": 0.25, "0.8": 0.5}, 0.5)
    assert (flat.holds, flat.below_uniform) == ({"0.5": 0.5, "0.8": 1.0}, 0.0)
    assert (peaked.curve[0], peaked.curve[-1], set(flat.curve)) == (0.6, pytest.approx(0.05), {0.25})


def test_curves_span_one_token_to_all():
    shares = token_shares(1000)
    assert (shares[0], shares[-1]) == (pytest.approx(0.001), 1.0)
    assert shares == sorted(shares)


@pytest.mark.parametrize("mass", [0.0, 1.0, 1.5])
def test_a_mass_is_a_share(llm, mass):
    with pytest.raises(InputError, match="above 0 and below 1"):
        sparsity(llm, [Digits()], 64, 1, masses=[mass])
