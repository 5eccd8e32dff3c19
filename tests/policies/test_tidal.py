"""TidalDecode against masks over the stock forward."""

import dataclasses

import pytest
import torch

from covering import covered
from read_reference import PROMPT, assert_equals_reference, run, small_llm
from winnow import Plan
from winnow.errors import PlanError
from winnow.policies.keep.streaming import Streaming
from winnow.policies.read.tidal import Tidal
from winnow.runtime.observer import Observer


def rule(layers, budget):
    selected = {}

    def reads(look):
        if look.layer in layers and look.units > budget + 1:
            attention = look.logits.softmax(-1).mean(1)[:, :-1]
            read = torch.zeros_like(look.everything()).scatter(1, attention.topk(budget).indices, True)
            read[:, -1] = True
            selected[look.row] = read
        if look.layer in layers or look.window is not None or look.row not in selected:
            return look.everything(), 0
        return selected[look.row], 0

    return reads


@covered(
    (
        ("name", "layers"),
        [
            ("llama", (0, 2)),
            ("llama", (1,)),
            ("llama", (1, 3)),
            ("smollm3", (0, 2)),
            ("gemma2", (1,)),
            ("gpt_oss", (1,)),
        ],
    ),
    budget=[1, 6, 36],
)
def test_equals_the_reference(name, layers, budget, text):
    counts = assert_equals_reference(name, Tidal(layers=layers, budget=budget), rule(layers, budget), text)
    shape = small_llm(name).decoder.shape
    for n, read in enumerate(counts, PROMPT + 1):
        dense = [layer < layers[0] or layer in layers for layer in range(shape.layers)]
        full = [n if all_of_it else min(n, budget + 1) for all_of_it in dense]
        seen = [units if window is None else min(n, window) for units, window in zip(full, shape.windows, strict=True)]
        assert read == shape.kv_heads * sum(seen)


def test_windows_everywhere_leave_nothing_to_select(text):
    llm = small_llm("mistral")
    got, _, state = run(llm, Plan(read=Tidal(budget=1)), text)
    torch.testing.assert_close(got, llm.logits(text)[PROMPT - 1 :], rtol=0, atol=1e-5)
    assert state.stats.fast_steps == 0


def test_it_holds_one_index(text):
    llm = small_llm()
    _, _, state = run(llm, Plan(read=Tidal(layers=(0, 2), budget=6)), text)
    state.measure()
    shape = llm.decoder.shape
    assert state.stats.aux_bytes == shape.kv_heads * 6 * 8
    assert (state.stats.slow_steps, state.stats.fast_steps) == (0, len(text) - PROMPT)


def test_over_streaming_the_window_is_selected_from(text):
    """The first units that `streaming` keeps are read by all layers; of the others what got most attention."""
    budget, wanted = 5, []

    class Watch(Observer):
        def attended(self, attended):
            read = [view.positions.expand(2, -1).tolist() for view in attended.views]
            if attended.layer == 1:
                weights, positions = attended.weights()
                attention = weights.unflatten(0, (2, -1)).mean(1)[:, 3:-1]  # without the first and the current
                best = [sorted(positions[3:-1][each].tolist()) for each in attention.topk(budget).indices]
                wanted.append([[*range(3), *head, int(positions[-1])] for head in best])
            elif attended.layer > 1:
                assert [[*first, *best, *own] for first, best, own in zip(*read, strict=True)] == wanted[-1]

    llm = small_llm()
    plan = Plan(keep=Streaming(sink=3, recent=15), read=Tidal(layers=(1,), budget=budget))
    _, counts, _ = run(llm, plan, text, Watch())
    assert len(wanted) == len(text) - PROMPT
    assert counts == [2 * (2 * 18 + 2 * (3 + budget + 1))] * len(wanted)
    covered = Plan(keep=Streaming(sink=3, recent=15), read=Tidal(layers=(1,), budget=14))
    torch.testing.assert_close(run(llm, covered, text)[0], run(llm, Plan(keep=covered.keep), text)[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("windows", "layers"),
    [
        ([None] * 32, (2, 16)),
        ([None] * 4, (2,)),
        ([None] * 3, (1,)),
        ([None] * 2, (0,)),
        ([None], ()),
        ([8] * 4, ()),
        ([8, None] * 8, (3, 9)),
        ([None, None, 8, 8], (0,)),
    ],
)
def test_the_preset(windows, layers):
    shape = dataclasses.replace(small_llm().decoder.shape, layers=len(windows), windows=tuple(windows))
    assert Tidal().selecting(shape) == layers


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"budget": 0}, "budget=0 must be at least 1"),
        ({"layers": []}, "names no layer"),
        ({"layers": [3, 2]}, "layers=\\[3, 2\\] must be numbers from 0 on"),
        ({"layers": [2, 2]}, "each above the one before"),
        ({"layers": [-1]}, "numbers from 0 on"),
        ({"layers": 2}, "must be a list of whole numbers or None"),
    ],
)
def test_bad_parameters_are_refused(parameters, says):
    with pytest.raises(PlanError, match=says):
        Tidal(**parameters)


@pytest.mark.parametrize(
    ("plan", "name", "says"),
    [
        ("tidal(layers=[2, 13])", "llama", "names layer 13, and the model has 4 layers, 0 to 3"),
        ("tidal(layers=[0])", "gemma2", "layer 0 has a sliding window of 8 .* without a window are 1, 3"),
        ("tidal(layers=[0])", "mistral", "without a window are none"),
        ("tidal + locret(decode_chunk=None)", "llama", "with locret layers hold different tokens"),
        ("tidal + speed(cutoff=2)", "llama", "with speed layers hold different tokens"),
    ],
)
def test_where_it_cannot_act(plan, name, says):
    with pytest.raises(PlanError, match=says):
        Plan.parse(plan).validate(small_llm(name).decoder.shape)
