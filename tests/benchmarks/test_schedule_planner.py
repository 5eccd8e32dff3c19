"""What schedules cost, and the planner."""

import dataclasses

import pytest
from benchmarks.schedule import flops, propose

from models import small_model
from winnow import LLM
from winnow.errors import InputError
from winnow.policies.compute.lazyllm import LazyLLM
from winnow.policies.compute.schedule import last_layer, preset_layers, rows_per_layer


@pytest.fixture(scope="module")
def base():
    return LLM(small_model("llama")).decoder.shape


def deep(base, layers, **changes):
    return dataclasses.replace(base, layers=layers, windows=(None,) * layers, **changes)


def test_flops_by_hand(base):
    shape = deep(base, 2, hidden=10, mlp=30)
    one = 4 * 7 * 100 + 2 * 49 * 10 + 3 * 7 * 10 * 30
    assert flops([7, 7], shape) == 2 * one


@pytest.mark.parametrize("wanted", [{"speedup": 2.0}, {"rows": 0.5}, {"flops": 0.4}, {"rows": 0.9}, {"speedup": 1.0}])
def test_a_proposal_costs_no_more_than_wanted_and_little_less(base, wanted):
    shape = deep(base, 28)
    found = propose(shape, 4096, **wanted)
    [(name, value)] = wanted.items()
    got = found.flops if name == "flops" else found.rows
    target = 1 / value if name == "speedup" else value
    assert target - 0.03 < got <= target
    rows = rows_per_layer(4096, 28, found.layers, found.keep)
    assert got == pytest.approx(
        flops(rows, shape) / flops([4096] * 28, shape) if name == "flops" else sum(rows) / (4096 * 28)
    )
    LazyLLM(layers=found.layers, keep=found.keep).validate(shape)


def test_a_strong_wish_keeps_to_layers_that_see_the_whole_prompt(base):
    windows = tuple(None if layer % 6 == 5 else 512 for layer in range(36))
    shape = dataclasses.replace(deep(base, 36), windows=windows)
    assert all(windows[p - 1] is None for p in propose(shape, 4096, speedup=3.0).layers)


def test_a_strong_wish_moves_the_stages_down(base):
    shape = deep(base, 28)
    assert propose(shape, 4096, speedup=3.5).layers[0] < preset_layers(shape, last_layer(shape))[0]


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"speedup": 50.0}, "the least is"),
        ({"speedup": 0.5}, "at least 1"),
        ({"rows": 0.0}, "above 0"),
        ({"rows": 1.5}, "at most 1"),
        ({}, "give one"),
        ({"rows": 0.5, "speedup": 2.0}, "give one"),
    ],
)
def test_wishes_that_cannot_be_met(base, wanted, says):
    with pytest.raises(InputError, match=says):
        propose(deep(base, 28), 4096, **wanted)
