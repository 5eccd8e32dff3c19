"""Which units have the highest scores: where one of each head leaves too, which is decided another way."""

import random

import pytest
import torch

from winnow.policies.keep.best import SAME, best

MOST = torch.finfo(torch.float32).max


def expected(scores, count, cancels):
    """Of one head: above the last place's score for certain, and of those that may have it the newest."""
    edge = sorted(scores)[-count]
    finite = [abs(each) for each in scores if abs(each) < MOST]
    slack = SAME * (max(finite, default=0.0) if cancels else abs(edge))
    above = [place for place, each in enumerate(scores) if each > edge + slack]
    level = [place for place, each in enumerate(scores) if edge - slack <= each <= edge + slack]
    return sorted(above + level[len(level) - (count - len(above)) :])


@pytest.mark.parametrize("cancels", [False, True])
@pytest.mark.parametrize("gone", [1, 2, 5])
def test_highest_of_each_head(gone, cancels):
    """Scores from few values, so that many are level, some but for rounding; the newest are sure to stay."""
    source = random.Random(gone)
    for units in (6, 7, 40):
        values = [source.choice([-3.0, -1.0, 0.0, 0.5, 2.0, 100.0]) for _ in range(3 * units)]
        noisy = [each * (1 + source.choice([0, 0, 1e-7, -1e-7, 1e-3])) for each in values]
        scores = torch.tensor(noisy).view(3, units)
        for protected in (0, 2, units):
            if protected:
                scores[:, -protected:] = MOST
            wanted = [expected(head.tolist(), units - gone, cancels) for head in scores]
            assert best(scores, units - gone, cancels=cancels).tolist() == wanted


def test_of_one_unit_none_is_left():
    assert best(torch.ones(2, 1), 0).shape == (2, 0)
