"""Units that are quantised in a cache: which, when, in what memory, and that nothing else tells on them."""

import random
from functools import partial

import pytest
import torch

from winnow.cache.layer import LayerCache
from winnow.cache.memory import Slab
from winnow.cache.quantized import QuantizedSlab
from winnow.cache.requantized import RequantizedSlab
from winnow.cache.view import View
from winnow.kernels.quantize import Form, dequantize, quantize

HEADS, DIM, GROUP = 2, 32, 16
FORM = Form(4, GROUP, "channel", "token", DIM)


def new_cache(**options):
    make = partial(_slab)
    return LayerCache(
        make, 8, quantized=partial(QuantizedSlab, FORM, HEADS, torch.float32, torch.device("cpu")), **options
    )


def _slab(capacity):
    return Slab(HEADS, capacity, DIM, torch.float32, torch.device("cpu"))


def units(count, seed=0):
    torch.manual_seed(seed)
    return torch.randn(2, HEADS, count, DIM)


def append(cache, both, start, stop):
    cache.append(*both[:, :, start:stop], torch.arange(start, stop), start)


def settled(cache):
    return sum(slots for _, slots in cache.memory._settled)


@pytest.mark.parametrize("residual", [0, 5, 16])
@pytest.mark.parametrize("seed", range(6))
def test_whole_groups_once_to_the_bit_however_units_came(residual, seed):
    """Times of quantisation are fixed; between them units come in any portions: the same codes, and those of whole
    groups from the first unit on; the others are as they came."""
    both, source, ends = units(200), random.Random(seed), (70, 96, 100, 160, 200)
    cache, known = new_cache(), 0
    for end in ends:
        while known < end:
            step = min(source.choice((1, 7, 30)), end - known)
            append(cache, both, known, known + step)
            known += step
        cache.quantize(residual, GROUP, room=source.choice((0, 9)))
        assert settled(cache) == max(0, known - residual) // GROUP * GROUP
    keys, values, positions = cache.live()
    count = settled(cache)
    for got, each, side in ((keys, both[0], "keys"), (values, both[1], "values")):
        assert torch.equal(got[:, count:], each[:, count:])
        coded = dequantize(*quantize(each[:, :count], FORM, side), FORM, side, torch.float32)
        assert torch.equal(got[:, :count], coded)
    assert positions.tolist() == list(range(200))


@pytest.mark.parametrize("rows", [1, 4])
def test_slots_of_units_that_left_by_themselves_are_used_again(rows):
    """Until the store's turn nothing else closes the gap that a window leaves behind."""
    cache, both, window = new_cache(), units(3000), 50
    append(cache, both, 0, 40)
    cache.quantize(0, GROUP, room=0)
    for known in range(40, 3000, rows):
        append(cache, both, known, known + rows)
        cache.drop(max(0, cache.length - window))
        assert cache.slab.capacity <= 2 * (window + rows)
    keys, values, positions = cache.live()
    assert torch.equal(torch.stack((keys, values)), both[:, :, -window:])
    assert positions.tolist() == list(range(3000 - window, 3000))


def test_bytes_are_those_of_codes_and_of_the_rest():
    cache, both = new_cache(), units(100)
    append(cache, both, 0, 100)
    assert cache.nbytes == cache.held_nbytes == 100 * 2 * HEADS * DIM * 4
    cache.quantize(10, GROUP, room=20)
    per_code = HEADS * 2 * DIM * (4 / 8 + 4 / GROUP)
    assert cache.nbytes == cache.held_nbytes == 80 * per_code + 20 * 2 * HEADS * DIM * 4
    assert cache.peak_nbytes == 100 * 2 * HEADS * DIM * 4
    assert cache.slab.capacity == 40


@pytest.mark.parametrize("sink", [0, 3])
def test_a_window_gives_groups_back_and_no_dead_unit_is_in_one(sink):
    """Of a window of 40 tokens 40 units are held, what came since the last time, and parts of two groups."""
    both, cache = units(400), new_cache()
    for at in range(400):
        append(cache, both, at, at + 1)
        if at >= 40 + sink:
            cache.drop(1, after=sink)
            dead = slice(max(sink - cache.memory.offset, 0), max(cache.start - cache.memory.offset, 0))
            cache.slab.keys[:, dead] = torch.nan  # what is gone is never quantised with what lives
        if at % GROUP == 0:
            cache.quantize(0, GROUP, room=GROUP)
            assert cache.memory.offset + cache.slab.capacity <= sink + 40 + 4 * GROUP
        keys, _, positions = cache.live()
        assert not keys.isnan().any()
        assert positions.tolist() == [*range(min(sink, at + 1)), *range(max(sink, at - 39), at + 1)]
        near = (keys - both[0][:, positions]).abs()
        assert near.max() < 0.5  # half a step of four bits
    assert settled(cache) > 0


def test_forks_share_codes_and_go_their_own_ways():
    both, cache = units(120), new_cache()
    append(cache, both, 0, 90)
    cache.quantize(8, GROUP, room=0)
    twin = cache.fork()
    assert cache.memory._settled[0][0] is twin.memory._settled[0][0]
    before = [each.clone() for each in cache.live()[:2]]
    append(twin, units(120, seed=1), 90, 120)
    twin.quantize(0, GROUP, room=0)
    for got, expected in zip(cache.live()[:2], before, strict=True):
        assert torch.equal(got, expected)
    append(cache, both, 90, 120)
    cache.quantize(8, GROUP, room=0)
    alone = new_cache()
    append(alone, both, 0, 90)
    alone.quantize(8, GROUP, room=0)
    append(alone, both, 90, 120)
    alone.quantize(8, GROUP, room=0)
    for got, expected in zip(cache.live()[:2], alone.live()[:2], strict=True):
        assert torch.equal(got, expected)


class Turn:
    """Keys of a unit at p are rotated to p times what they were."""

    def turn(self, keys, places, *, back=False):
        factor = (1.0 + places)[..., None]
        return keys / factor if back else keys * factor


SLABS = {
    "by channel": partial(QuantizedSlab, FORM, HEADS, torch.float32, torch.device("cpu")),
    "by token": partial(
        QuantizedSlab, Form(2, GROUP, "token", "channel", DIM, True), HEADS, torch.float32, torch.device("cpu")
    ),
    "before rotation": partial(QuantizedSlab, FORM, HEADS, torch.float32, torch.device("cpu"), Turn()),
    "anew": partial(RequantizedSlab.empty, 4, 8, HEADS, DIM, torch.float32, torch.device("cpu"), zero_point=False),
}


@pytest.mark.parametrize("heads", [1, HEADS])
@pytest.mark.parametrize("name", SLABS)
def test_a_slab_gives_the_units_that_are_asked_for_and_no_others(name, heads):
    """A range, some of each KV head, what is left of it; those that were read before stay as they were."""
    both, places = units(96), torch.randint(0, 90, (heads, 96))
    first = SLABS[name]().append(*both[:, :, :32], places[:, :32])
    run = first.run(0, 32)
    kept = run.keys, run.values
    slab = first.append(*both[:, :, 32:], places[:, 32:])
    assert (slab is first) != slab.remade
    assert all(map(torch.equal, kept, (run.keys, run.values)))
    whole = [slab.read(number, 0, 96) for number in range(2)]
    assert 0 < (whole[0] - both[0]).abs().max() < 100
    index = torch.stack([torch.randperm(96)[:20].sort().values for _ in range(HEADS)])
    rest = slab.without(16, 48)
    for number, each in enumerate(whole):
        assert torch.equal(slab.read(number, 5, 41), each[:, 5:41])
        assert torch.equal(slab.pick(number, index), each.gather(1, index[..., None].expand(-1, -1, DIM)))
        assert torch.equal(rest.read(number, 0, 64), torch.cat((each[:, :16], each[:, 48:]), 1))
    assert slab.nbytes == slab.capacity * slab.unit_bytes
    if name == "before rotation":
        turned = dequantize(*quantize(both[0] / (1.0 + places)[..., None], FORM, "keys"), FORM, "keys", torch.float32)
        torch.testing.assert_close(whole[0], turned * (1.0 + places)[..., None], rtol=1e-5, atol=0)


@pytest.mark.parametrize("shares", [True, False])
def test_forks_of_what_is_made_anew_go_on_as_if_there_was_one(shares):
    """All of their units are made anew with those that come, in memory of their own; to the bit."""
    both, other = units(100), units(100, seed=1)
    alone, cache = (LayerCache(_slab, 8, quantized=SLABS["anew"], shares=shares) for _ in range(2))
    for each in (alone, cache):
        append(each, both, 0, 40)
        each.quantize(0, 1, room=4)
    twin = cache.fork()
    assert twin.memory._settled[0][0] is cache.memory._settled[0][0]
    for each, source in ((twin, other), (alone, both), (cache, both)):
        append(each, source, 40, 100)
        each.quantize(0, 1, room=4)
        assert [slots for _, slots in each.memory._settled] == [100]
    for got, expected, others in zip(cache.live()[:2], alone.live()[:2], twin.live()[:2], strict=True):
        assert torch.equal(got, expected)
        assert torch.equal(others[:, :40], expected[:, :40])
        assert not torch.equal(others[:, 40:], expected[:, 40:])


def test_units_apart_in_several_runs_are_those_of_all_runs_together():
    cache, both = new_cache(), units(100)
    append(cache, both, 0, 100)
    cache.quantize(10, GROUP, room=20)
    view = View(tuple(cache.memory.runs(0, 100)), torch.arange(100), torch.arange(100), 100, place=0)
    index = torch.stack([torch.randperm(100)[:30].sort().values for _ in range(HEADS)])
    [piece] = view.chosen(index).pieces
    assert piece.index is None
    for got, each in ((piece.keys, view.keys), (piece.values, view.values)):
        assert torch.equal(got, each.gather(1, index[..., None].expand(-1, -1, DIM)))


def test_a_copy_where_nothing_is_shared():
    both, cache = units(100), new_cache(shares=False)
    append(cache, both, 0, 100)
    cache.quantize(0, GROUP, room=0)
    twin = cache.fork()
    assert cache.memory._settled[0][0] is not twin.memory._settled[0][0]
    for got, expected in zip(twin.live(), cache.live(), strict=True):
        assert torch.equal(got, expected)
