"""The cache against a list: append, drop, retain, fork in any order."""

import random

import pytest
import torch

from winnow.cache.layer import LayerCache, Slab

KV_HEADS, WIDTH = 2, 3


def make(capacity):
    slab = Slab(KV_HEADS, capacity, WIDTH, torch.float32, torch.device("cpu"))
    slab.keys.fill_(torch.nan)
    slab.values.fill_(torch.nan)
    return slab


def units(positions):
    """Keys that tell their position and head."""
    base = torch.tensor(positions, dtype=torch.float32)[None, :, None] + torch.arange(KV_HEADS)[:, None, None] / 10
    return base.expand(KV_HEADS, len(positions), WIDTH)


def check(cache, expected):
    """expected: the positions that are live, per head."""
    keys, values, positions = cache.live()
    told = torch.stack([units(kept)[head] for head, kept in enumerate(expected)])
    assert positions.expand(KV_HEADS, -1).tolist() == expected
    assert torch.equal(keys, told)
    assert torch.equal(values, -told)
    assert cache.length == len(expected[0])
    assert cache.nbytes == keys.nbytes + values.nbytes


@pytest.mark.parametrize("limit", [None, 12])
@pytest.mark.parametrize("seed", range(20))
def test_any_history_equals_a_list(seed, limit):
    source = random.Random(seed)
    head = source.randrange(0, 3)
    cache, expected, after = LayerCache(make, source.randrange(1, 9), limit), [], 0
    for position in range(60):
        cache.append(units([position]), -units([position]), torch.tensor([position]))
        expected.append(position)
        if len(expected) > source.randrange(4, 11) or len(expected) == 12:
            after = head
            count = source.randrange(1, len(expected) - after + 1)
            cache.drop(count, after)
            del expected[after : after + count]
        check(cache, [expected] * KV_HEADS)
        assert not cache.gapless
        if source.random() < 0.1:
            cache = cache.fork()
            check(cache, [expected] * KV_HEADS)
    if limit:
        assert cache.slab.capacity <= limit


def test_heads_may_keep_different_units():
    cache = LayerCache(make, 4)
    cache.append(units(range(10)), -units(range(10)), torch.arange(10))
    cache.drop(2, after=1)  # 0, 3..9
    cache.retain(torch.tensor([[0, 1, 4], [2, 3, 7]]))
    check(cache, [[0, 3, 6], [4, 5, 9]])
    cache.append(units([10]), -units([10]), torch.tensor([10]))
    check(cache, [[0, 3, 6, 10], [4, 5, 9, 10]])
    check(cache.fork(), [[0, 3, 6, 10], [4, 5, 9, 10]])


def test_retaining_little_returns_the_memory():
    cache = LayerCache(make, 1000)
    cache.append(units(range(1000)), -units(range(1000)), torch.arange(1000))
    cache.retain(torch.tensor([1, 2, 999]))
    check(cache, [[1, 2, 999]] * 2)
    assert cache.slab.nbytes == 3 * cache.unit_bytes
    assert cache.peak_nbytes == 1000 * cache.unit_bytes


@pytest.mark.parametrize("seed", range(40))
def test_any_history_of_forks_equals_lists(seed):
    """Several caches that share what they have in common; each goes its own way."""
    source = random.Random(seed)
    caches, position = [(LayerCache(make, source.randrange(1, 90), scored=bool(seed % 2)), [])], 0
    for _ in range(60):
        at = source.randrange(len(caches))
        cache, expected = caches[at]
        rows = source.randrange(1, 40)
        come = [*range(position, position + rows)]
        position += rows
        cache.append(units(come), -units(come), torch.tensor(come))
        expected += come
        if source.random() < 0.2 and len(expected) > 3:
            count = source.randrange(1, len(expected) - 2)
            cache.drop(count, after=cache.head if cache.start > cache.head or cache.head else 2)
            sink = cache.head
            del expected[sink : sink + count]
        if source.random() < 0.1:
            kept = sorted(source.sample(range(len(expected)), source.randrange(1, len(expected) + 1)))
            cache.retain(torch.tensor(kept))
            expected[:] = [expected[index] for index in kept]
        if source.random() < 0.3 and len(caches) < 6:
            caches.append((cache.fork(), list(expected)))
        elif source.random() < 0.1 and len(caches) > 1:
            caches.pop(at)
        for each, wanted in caches:
            check(each, [wanted] * KV_HEADS)
    for each, _ in caches:
        assert each.nbytes <= each.held_nbytes <= each.allocated_nbytes


def test_a_fork_shares_no_memory():
    cache = LayerCache(make, 4)
    cache.append(units([0, 1]), -units([0, 1]), torch.arange(2))
    twin = cache.fork()
    twin.slab.keys.zero_()
    check(cache, [[0, 1]] * 2)


def test_a_fork_that_shares_nothing_copies_what_lives():
    """And what has been filled before it is there as it was."""
    cache = LayerCache(make, 200, shares=False)
    cache.append(units([*range(150)]), -units([*range(150)]), torch.arange(150))
    cache.drop(100, after=2)
    twin = cache.fork()
    check(twin, [[0, 1, *range(102, 150)]] * KV_HEADS)
    assert (cache.held_nbytes, twin.held_nbytes) == (150 * cache.unit_bytes, 50 * cache.unit_bytes)
    assert twin.slab.keys[:, 2:102].isnan().all()


def test_growth_is_geometric():
    cache = LayerCache(make, 1)
    capacities = set()
    for position in range(1000):
        cache.append(units([position]), -units([position]), torch.tensor([position]))
        capacities.add(cache.slab.capacity)
    assert len(capacities) < 40


@pytest.mark.parametrize(("count", "after"), [(-1, 0), (4, 0), (3, 1)])
def test_dropping_what_is_not_there(count, after):
    cache = LayerCache(make, 4)
    cache.append(units([0, 1, 2]), -units([0, 1, 2]), torch.arange(3))
    with pytest.raises(ValueError, match="cannot drop"):
        cache.drop(count, after)


def test_gapless_is_known_without_looking():
    cache = LayerCache(make, 4)
    for first in (0, 3):
        cache.append(units(range(first, first + 3)), -units(range(3)), torch.arange(first, first + 3), first)
    cache.drop(2)
    assert cache.gapless
    assert cache.fork().gapless
    cache.append(units([8]), -units([8]), torch.tensor([8]), 8)
    assert not cache.gapless


def scored(capacity=3):
    return LayerCache(make, capacity, scored=True)


def put(cache, positions):
    """Units whose scores tell their position and head, as their keys do."""
    cache.append(units(positions), -units(positions), torch.tensor(positions), None, units(positions)[..., 0])


def check_scores(cache, expected):
    """expected: the positions that are live, per head."""
    check(cache, expected)
    wanted = torch.stack([units(kept)[head] for head, kept in enumerate(expected)])
    torch.testing.assert_close(cache.live_scores(), wanted[..., 0])


@pytest.mark.parametrize("seed", range(10))
def test_scores_stay_with_their_units(seed):
    """Through growth, moves, evictions, and forks; those of a fork are its own."""
    source = random.Random(seed)
    cache, expected, came, left = scored(), [], 0, 0
    for position in range(0, 60, 2):
        put(cache, [position, position + 1])
        expected += [position, position + 1]
        came += 2
        if len(expected) > source.randrange(4, 20):
            count = source.randrange(1, len(expected) - 1)
            cache.drop(count, after=1)
            del expected[1 : 1 + count]
            left += count
        if source.random() < 0.2:
            twin, cache = cache, cache.fork()
            twin.scores.fill_(torch.nan)
        check_scores(cache, [expected] * KV_HEADS)
        assert (cache.appended, cache.dropped) == (came, left)


def test_scores_of_heads_that_keep_different_units():
    cache = scored(4)
    put(cache, [*range(10)])
    cache.drop(2, after=1)
    cache.retain(torch.tensor([[0, 1, 4], [2, 3, 7]]))
    check_scores(cache, [[0, 3, 6], [4, 5, 9]])
    put(cache, [10])
    check_scores(cache, [[0, 3, 6, 10], [4, 5, 9, 10]])
    # A score and a position per unit and head, of the four units in the memory that took the place of the ten's.
    assert cache.held_beside_nbytes == 4 * KV_HEADS * (4 + 8)
    assert cache.held_nbytes == 4 * cache.unit_bytes < cache.peak_nbytes


def test_units_that_came_and_left_are_counted():
    """Those retracted never came; those that are not retained did not leave as the oldest."""
    cache = scored()
    put(cache, [0, 1, 2, 3, 4])
    cache.retract(2)
    assert (cache.appended, cache.dropped) == (3, 0)
    cache.drop(1)
    cache.retain(torch.tensor([1]))
    assert (cache.appended, cache.dropped) == (3, 1)
    put(cache, [5])
    twin = cache.fork()
    put(twin, [6])
    twin.drop(1)
    assert (cache.appended, cache.dropped, twin.appended, twin.dropped) == (4, 1, 5, 2)


def test_a_cache_without_scores_has_none():
    cache = LayerCache(make, 4)
    assert cache.scores is None
    assert cache.held_beside_nbytes == 0
    with pytest.raises(ValueError, match="no scores"):
        cache.live_scores()
