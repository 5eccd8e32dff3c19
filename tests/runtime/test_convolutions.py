"""Convolutions as an artefact: their weights by definition, and what is damaged or another model's is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from models import small_model
from trials import small_convolutions
from winnow import LLM
from winnow.errors import ModelError
from winnow.runtime.convolutions import KIND, Convolutions, ConvolutionsConfig
from winnow.runtime.trained import CONFIG


@pytest.fixture
def llm():
    return LLM(small_model())


@pytest.fixture
def saved(llm, tmp_path):
    small_convolutions(llm).save(tmp_path / "made")
    return tmp_path / "made"


def test_weights_are_those_of_the_definition():
    """By hand: every unit with its neighbours, beyond the ends nothing."""
    config = ConvolutionsConfig("base", "0", layers=1, head_dim=2, sums=2, kernel=3)
    [layer] = Convolutions.random(config, seed=0).layers
    keys, values, seeds = torch.randn(3, 5, 2), torch.randn(3, 5, 2), torch.tensor([[0, 4]] * 3)
    got = layer.weights(keys, values, seeds)
    for head in range(3):
        for row in range(2):
            logits = []
            for unit in range(5):
                total = layer.bias[row]
                for offset in (-1, 0, 1):
                    if 0 <= unit + offset < 5:
                        both = torch.cat((keys[head, unit + offset], values[head, unit + offset]))
                        total = total + layer.weight[row, :, offset + 1] @ both
                logits.append(max(total, torch.tensor(0.0)))
            expected = 0.5 * torch.stack(logits).softmax(0)
            expected[seeds[head, row]] += 0.5
            torch.testing.assert_close(got[head, row], expected)
    torch.testing.assert_close(got.sum(-1), torch.ones(3, 2))


def test_what_is_saved_is_loaded(llm, saved):
    mine, its = small_convolutions(llm), Convolutions.load(saved)
    assert mine.config == its.config
    for one, other in zip(mine.layers, its.layers, strict=True):
        assert all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("weight", "bias", "share"))


def test_the_same_seed_gives_the_same(llm):
    config = small_convolutions(llm).config
    one, other, third = (Convolutions.random(config, seed) for seed in (3, 3, 4))
    assert torch.equal(one.layers[2].weight, other.layers[2].weight)
    assert not torch.equal(one.layers[2].weight, third.layers[2].weight)


def test_those_of_another_model_are_refused(saved):
    other = small_model()
    with torch.no_grad():
        other.lm_head.weight.add_(0.1)
    with pytest.raises(ModelError, match=r"the convolutions were trained on LlamaForCausalLM, .*: winnow train lococo"):
        LLM(other, convolutions=saved)
    with pytest.raises(ModelError, match="has other weights"):
        LLM(other).prepare(f"lococo(convolutions={str(saved)!r})")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda place: (place / KIND.weights).unlink(), "holds no convolutions: it needs convolutions.safetensors"),
        (lambda place: (place / KIND.weights).write_bytes(b"nothing"), "convolutions.safetensors is damaged"),
        (lambda place: change(place, kernel=4), "config.json is damaged .a count is wrong.; train"),
        (lambda place: change(place, sums="4"), "config.json is damaged"),
        (lambda place: change(place, more=1), "config.json is damaged"),
        (lambda place: change(place, sums=5), "does not hold what config.json says"),
        (lambda place: spoil(place), "the convolutions in .*layers.0.bias"),
    ],
)
def test_what_is_damaged_is_refused(damage, message, saved):
    damage(saved)
    with pytest.raises(ModelError, match=message):
        LLM(small_model(), convolutions=saved)


def change(place, **values):
    path = place / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def spoil(place):
    tensors = load_file(place / KIND.weights)
    tensors["layers.0.bias"][0] = torch.nan
    save_file(tensors, place / KIND.weights)
