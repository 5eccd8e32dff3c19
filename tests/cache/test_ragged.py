"""A cache whose KV heads keep different numbers of units, against a list for each: any history, and every byte."""

import random

import pytest
import torch

from winnow.cache.layer import LayerCache
from winnow.cache.memory import Slab
from winnow.cache.view import NOBODY

KV_HEADS, WIDTH = 3, 2


def make(capacity):
    slab = Slab(KV_HEADS, capacity, WIDTH, torch.float32, torch.device("cpu"))
    slab.keys.fill_(torch.nan)
    slab.values.fill_(torch.nan)
    return slab


def append(cache, expected, position, rows):
    positions = torch.arange(position, position + rows)
    keys = (positions[None] + 100 * torch.arange(KV_HEADS)[:, None]).float()[..., None].expand(-1, -1, WIDTH)
    scores = torch.rand(KV_HEADS, rows)
    cache.append(keys, -keys, positions, position, scores)
    for head, units in enumerate(expected):
        units += [[p, float(p + 100 * head), float(s)] for p, s in zip(positions.tolist(), scores[head], strict=True)]


def check(cache, expected):
    """expected: of each head its units, [position, key, score]."""
    longest = max(map(len, expected))
    keys, values = cache.memory.read(0, cache.stop)
    positions, scores = cache.live_positions().expand(KV_HEADS, -1), cache.live_scores()
    assert cache.length == longest
    assert cache.units == sum(map(len, expected))
    assert cache.nbytes == cache.units * cache.unit_bytes // KV_HEADS
    for head, units in enumerate(expected):
        missing = longest - len(units)
        assert (positions[head, :missing] == NOBODY).all()
        assert positions[head, missing:].tolist() == [position for position, _, _ in units]
        assert keys[head, missing:, 0].tolist() == [key for _, key, _ in units]
        assert values[head, missing:, 1].tolist() == [-position - 100 * head for position, _, _ in units]
        torch.testing.assert_close(scores[head, missing:], torch.tensor([score for *_, score in units]))


@pytest.mark.parametrize("limit", [None, 30])
@pytest.mark.parametrize("seed", range(20))
def test_any_history_equals_lists(seed, limit):
    source = random.Random(seed)
    torch.manual_seed(seed)
    cache, expected, position = LayerCache(make, source.randrange(1, 9), limit, scored=True), [[], [], []], 0
    for _ in range(30):
        rows = source.randrange(1, 4)
        append(cache, expected, position, rows)
        position += rows
        if cache.units > 3 * 9:
            counts = [source.randrange(1, min(9, len(head)) + 1) for head in expected]
            kept = [sorted(source.sample(range(len(h)), n)) for h, n in zip(expected, counts, strict=True)]
            longest = max(map(len, expected))
            index = [torch.tensor(each) + longest - len(head) for each, head in zip(kept, expected, strict=True)]
            cache.retain(index, room=source.randrange(4))
            expected = [[head[at] for at in each] for each, head in zip(kept, expected, strict=True)]
            own = cache.slab.capacity
            assert cache.held_nbytes == cache.nbytes == cache.units * cache.unit_bytes // KV_HEADS
            assert cache.held_beside_nbytes == cache.units * (8 + 4)
            assert cache.allocated_nbytes == cache.nbytes + own * cache.unit_bytes
        votes, first = torch.rand(KV_HEADS, cache.length), [cache.length - len(head) for head in expected]
        adds = source.random() < 0.8
        (cache.add_scores if adds else cache.set_scores)(votes)
        for head, units in enumerate(expected):
            for unit, vote in zip(units, votes[head, first[head] :].tolist(), strict=True):
                unit[2] = unit[2] * adds + vote
        if source.random() < 0.2:
            twin = cache.fork()
            for other in (cache, twin) if source.random() < 0.5 else (twin, cache):
                if source.random() < 0.3:
                    other.change_keys(lambda keys, first: keys)
            append(cache, [[], [], []], position, 70)  # what the other one does with what they shared
            cache = twin
        check(cache, expected)
        assert limit is None or cache.slab.capacity <= max(limit, 70)


def test_keys_are_changed_at_their_slots():
    cache, expected = LayerCache(make, 8, scored=True), [[], [], []]
    append(cache, expected, 0, 6)
    cache.retain([torch.tensor([5]), torch.tensor([0, 2, 3]), torch.tensor([1, 4])], room=4)
    append(cache, [[], [], []], 6, 1)
    twin = cache.fork()
    cache.change_keys(lambda keys, first: keys + 1000 * torch.arange(first, first + keys.shape[1])[:, None])
    keys = cache.memory.read(0, cache.stop)[0][..., 0].long()
    assert keys[0, 2:].tolist() == [2005, 3006]
    assert keys[1].tolist() == [100, 1102, 2103, 3106]
    assert keys[2, 1:].tolist() == [1201, 2204, 3206]
    assert twin.memory.read(0, twin.stop)[0][1, :, 0].tolist() == [100, 102, 103, 106]
