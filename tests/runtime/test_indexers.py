"""Indexers as an artefact: their scores by definition, and what is damaged or another model's is refused."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from models import small_model
from trials import small_indexers
from winnow import LLM
from winnow.errors import ModelError
from winnow.runtime.indexers import KIND, Indexers
from winnow.runtime.trained import CONFIG


@pytest.fixture
def llm():
    return LLM(small_model("gemma2"))


@pytest.fixture
def saved(llm, tmp_path):
    small_indexers(llm).save(tmp_path / "made")
    return tmp_path / "made"


def test_layers_with_a_window_have_none(llm):
    assert list(small_indexers(llm).layers) == [1, 3]
    assert list(small_indexers(LLM(small_model("mistral"))).layers) == []


def test_what_is_saved_is_loaded(llm, saved):
    mine, its = small_indexers(llm), Indexers.load(saved)
    assert mine.config == its.config
    for layer, one in mine.layers.items():
        assert all(torch.equal(getattr(one, name), each) for name, each in vars(its.layers[layer]).items())


def test_the_same_seed_gives_the_same(llm):
    config = small_indexers(llm).config
    one, other, third = (Indexers.random(config, seed) for seed in (3, 3, 4))
    assert torch.equal(one.layers[1].query, other.layers[1].query)
    assert not torch.equal(one.layers[1].query, third.layers[1].query)


def test_those_of_another_model_are_refused(saved):
    other = small_model("gemma2")
    with torch.no_grad():
        other.model.norm.weight.add_(0.1)
    with pytest.raises(ModelError, match=r"the indexers were trained on Gemma2ForCausalLM, .*: winnow train indexer"):
        LLM(other, indexers=saved)
    with pytest.raises(ModelError, match="has other weights"):
        LLM(other).prepare(f"indexer(trained={str(saved)!r})")


def test_keys_are_no_wider_than_a_head(llm):
    """By which memory is reserved."""
    drawn = Indexers.random(replace(small_indexers(llm).config, dim=33), seed=0)
    with pytest.raises(ModelError, match="the indexers do not fit Gemma2ForCausalLM"):
        LLM(llm.model, indexers=drawn)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda place: (place / KIND.weights).unlink(), "holds no indexers: it needs indexers.safetensors"),
        (lambda place: (place / KIND.weights).write_bytes(b"nothing"), "indexers.safetensors is damaged"),
        (lambda place: change(place, heads=0), "config.json is damaged .a count or a layer is wrong.; train the ind"),
        (lambda place: change(place, dim="8"), "config.json is damaged"),
        (lambda place: change(place, layers=3), "config.json is damaged"),
        (lambda place: change(place, layers=["1"]), "config.json is damaged"),
        (lambda place: change(place, more=1), "config.json is damaged"),
        (lambda place: change(place, layers=[1, 2]), "does not hold what config.json says"),
        (lambda place: spoil(place), "the indexers in .*layers.3.key"),
    ],
)
def test_what_is_damaged_is_refused(damage, message, saved):
    damage(saved)
    with pytest.raises(ModelError, match=message):
        LLM(small_model("gemma2"), indexers=saved)


def change(place, **values):
    path = place / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def spoil(place):
    tensors = load_file(place / KIND.weights)
    tensors["layers.3.key"][0, 0] = torch.nan
    save_file(tensors, place / KIND.weights)
