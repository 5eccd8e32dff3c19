"""What pictures share."""

from itertools import pairwise

from winnow.cli.draw import spread


def test_labels_are_pushed_apart_in_their_order():
    placed = spread([0.5, 0.5, 0.98, 1.0, 0.1], apart=0.1)
    assert sorted(placed, key=lambda index: placed[index]) == [4, 1, 0, 2, 3]
    heights = sorted(placed.values())
    assert all(after - before >= 0.1 - 1e-9 for before, after in pairwise(heights))
    assert heights[-1] <= 1
