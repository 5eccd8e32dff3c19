"""LagKV against an independent token-by-token implementation."""

import math
import statistics

import pytest
import torch

from covering import covered
from evict_reference import assert_equals_reference, best, keys_and_values
from models import small_model
from winnow import LLM
from winnow.errors import PlanError
from winnow.policies.keep.lagkv import LagKV

PROMPT = 31


def rule(policy, model):
    def stays(notes, live):
        both, lag = keys_and_values(model, policy, notes), policy.lag
        score, starts = dict.fromkeys(live, math.inf), range(policy.sink, len(live) - 2 * lag + 1, lag)
        for start in starts:
            mine, following = range(start, start + lag), range(start + lag, start + 2 * lag)
            shares = [shares_of([of[i] for i in mine], [of[i] for i in following]) for of in both]
            figures = [(key + value) / 2 for key, value in zip(*shares, strict=True)]
            for i, figure in zip(mine, figures, strict=True):
                score[live[i]] = sum((other, at) < (figure, i) for at, other in zip(mine, figures, strict=True))
        return best(live, score, policy.budget, 0, notes.window)

    return stays


def shares_of(partition, following):
    """Of each vector of a partition, its share of the standard deviations in the frame of the following one."""
    low = [min(float(x) for x in channel) for channel in zip(*following, strict=True)]
    high = [max(float(x) for x in channel) for channel in zip(*following, strict=True)]
    framed = [[(float(x) - a) / (b - a) for x, a, b in zip(row, low, high, strict=True)] for row in partition]
    spreads = [statistics.stdev(row) for row in framed]
    powers = [math.exp(each - max(spreads)) for each in spreads]
    return [power / sum(powers) for power in powers]


@covered(
    (
        ("name", "parameters"),
        [
            ("llama", {"chunk": 6}),
            ("llama", {"chunk": None, "local": 0, "sink": 3, "lag": 2}),  # kvpress's form
            ("llama", {"chunk": 7, "positions": "compact", "decode_chunk": 4}),
            ("llama-9-3", {"chunk": None, "sink": 0, "lag": 4, "decode_chunk": 1}),
            ("mistral", {"budget": 6, "chunk": 5, "lag": 2}),  # a window of 8 in every layer
        ],
    ),
    prefill_chunk=[1, 7, 64],
)
def test_equals_the_reference(text, name, parameters, prefill_chunk):
    policy = LagKV(**{"budget": 9, "sink": 1, "lag": 3, "local": 4, **parameters})
    llm = LLM(small_model(name), prefill_chunk=prefill_chunk)
    sets = assert_equals_reference(llm, text, policy, rule(policy, llm.model), PROMPT, policy.local)
    assert len({str(head) for layer in sets[PROMPT - 1] for head in layer}) > 1  # each head its own


def test_ranks_by_hand():
    """One sink, partitions of two, one unit behind them; in the frame of the following partition the channels of the
    first are (0, 1), of the second (0, 3): the second varies more."""
    keys = torch.tensor([[9.0, 9.0], [0.0, 2.0], [0.0, 6.0], [0.0, 0.0], [1.0, 2.0], [5.0, 5.0]])[None]
    assert LagKV(sink=1, lag=2).ranks(keys, keys, None).tolist() == [[2.0, 0.0, 1.0, 2.0, 2.0, 2.0]]
    assert LagKV(sink=3, lag=2).ranks(keys, keys, None).tolist() == [[2.0] * 6]  # one partition has no next one


def test_a_channel_that_does_not_vary_has_no_say():
    """Where one token is repeated, the values of the first layer are all the same."""
    values = torch.ones(1, 6, 4)
    keys = torch.randn(1, 6, 4)
    found = LagKV(sink=0, lag=3).ranks(keys, values, None)
    assert found.isfinite().all()
    assert found[0, :3].sort().values.tolist() == [0.0, 1.0, 2.0]
    assert LagKV(sink=0, lag=3).ranks(keys, values + 1e-7 * torch.randn(1, 6, 4), None).tolist() == found.tolist()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"budget": 259}, "cannot hold sink=4 units and two partitions of lag=128; use a budget of at least 260"),
        ({"lag": 1}, "lag=1 must be at least 2"),
        ({"sink": -1}, "sink=-1 must be at least 0"),
    ],
)
def test_bad_parameters_are_refused(parameters, message):
    with pytest.raises(PlanError, match=message):
        LagKV(**parameters)
