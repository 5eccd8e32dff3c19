"""LagKV's ranks, and what it refuses; the whole is compared with a restatement in `test_scores`."""

import pytest
import torch

from winnow.errors import PlanError
from winnow.policies.keep.lagkv import LagKV


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
