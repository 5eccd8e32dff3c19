"""Pruning schedules: the preset at any depth."""

import dataclasses

import pytest

from models import small_model
from winnow import LLM
from winnow.policies.compute.lazyllm import LazyLLM
from winnow.policies.compute.schedule import last_layer, preset_layers


@pytest.fixture(scope="module")
def base():
    return LLM(small_model("llama")).decoder.shape


def deep(base, layers, **changes):
    return dataclasses.replace(base, layers=layers, windows=(None,) * layers, **changes)


def test_the_preset_at_32_layers_with_shares_near_the_papers_speed_up(base):
    shape = deep(base, 32)
    assert preset_layers(shape, last_layer(shape)) == (8, 16, 24)
    rows = LazyLLM(cumulative=(0.4, 0.2, 0.1)).layer_tokens(shape, 4001).rows
    assert rows == [4001] * 8 + [1601] * 8 + [801] * 8 + [401] * 8
    assert sum(rows) / (32 * 4001) == pytest.approx(0.425, abs=1e-3)
    rows = LazyLLM().layer_tokens(shape, 4001).rows
    assert rows == [4001] * 8 + [1801] * 8 + [1601] * 8 + [1401] * 8


def test_of_two_layers_as_near_the_later_prunes(base):
    """Of 30: half of them is a layer, a quarter and three quarters lie between two."""
    assert preset_layers(deep(base, 30), 29) == (8, 15, 23)


@pytest.mark.parametrize("layers", [2, 3, 5, 8, 28, 80])
def test_the_preset_fits_any_depth(base, layers):
    shape = deep(base, layers)
    plan = LazyLLM()
    plan.validate(shape)
    assert all(1 <= gate.layer <= last_layer(shape) for gate in plan.gates(shape))
    rows = plan.layer_tokens(shape, 1000).rows
    assert len(rows) == layers
    assert rows == sorted(rows, reverse=True)


def test_the_preset_ranks_in_layers_that_see_the_whole_prompt(base):
    """Five windowed layers to one full, as Gemma 3 has."""
    windows = tuple(None if layer % 6 == 5 else 512 for layer in range(36))
    shape = dataclasses.replace(deep(base, 36), windows=windows)
    chosen = preset_layers(shape, last_layer(shape))
    assert len(chosen) == 3
    assert all(windows[p - 1] is None for p in chosen)
