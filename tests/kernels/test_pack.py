"""Packing chosen units: every byte against indexing."""

import pytest
import torch

from winnow.kernels.pack import move, pack, pack_reference


@pytest.mark.threads
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [8, 32, 80, 128])
@pytest.mark.parametrize("count", [0, 1, 255, 256, 700])
def test_every_unit_is_the_one_of_its_head(count, head_dim, dtype):
    generator = torch.Generator().manual_seed(count)
    slab = torch.randn(3, 950, head_dim, generator=generator).to(dtype)
    units = slab[:, 9:909]
    index = torch.stack([torch.randperm(900, generator=generator)[:count] for _ in range(3)])
    expected = units.gather(1, index[..., None].expand(-1, -1, head_dim))
    for function in (pack, pack_reference):
        memory = torch.full((3, count + 8, head_dim), float("nan"), dtype=dtype)
        function(units, index, memory[:, 4 : count + 4])
        assert torch.equal(memory[:, 4 : count + 4], expected)
        assert memory[:, :4].isnan().all()
        assert memory[:, count + 4 :].isnan().all()


def test_an_index_may_be_a_view_and_repeat_itself():
    units = torch.randn(2, 5, 64)
    index = torch.tensor([[4, 0], [4, 1], [2, 1]]).T
    out = torch.empty(2, 3, 64)
    pack(units, index, out)
    assert torch.equal(out, torch.stack([units[0, [4, 4, 2]], units[1, [0, 1, 1]]]))


@pytest.mark.parametrize("wrong", [-1, 5, 2**40])
def test_an_index_out_of_range_is_refused(wrong):
    pytest.importorskip("numba")
    with pytest.raises(ValueError, match="1 of 2 indices"):
        pack(torch.zeros(1, 5, 64), torch.tensor([[1, wrong]]), torch.empty(1, 2, 64))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"out": torch.zeros(2, 4, 64)}, "shapes"),
        ({"index": torch.zeros(1, 3, dtype=torch.int64)}, "shapes"),
        ({"index": torch.zeros(2, 3, dtype=torch.int32)}, "int64"),
        ({"out": torch.zeros(2, 3, 64, dtype=torch.bfloat16)}, "one dtype"),
        ({"units": torch.zeros(2, 64, 5).mT}, "side by side"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change, word):
    arguments = {
        "units": torch.zeros(2, 5, 64), "index": torch.zeros(2, 3, dtype=torch.int64), "out": torch.zeros(2, 3, 64)
    }  # fmt: skip
    with pytest.raises(ValueError, match=word):
        pack(**(arguments | change))


@pytest.mark.threads
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [40, 64])
@pytest.mark.parametrize("kept", [1, 299, 600])
def test_units_move_to_the_left_in_their_own_memory(kept, head_dim, dtype):
    generator = torch.Generator().manual_seed(kept)
    slab = torch.randn(3, 700, head_dim, generator=generator).to(dtype)
    before = slab.clone()
    places = torch.stack([torch.randperm(640, generator=generator)[:kept].sort().values for _ in range(3)]) + 20
    move(slab[:, :660], places, slab[:, 20 : 20 + kept])
    expected = before.gather(1, places[..., None].expand(-1, -1, head_dim))
    assert torch.equal(slab[:, 20 : 20 + kept], expected)
    assert torch.equal(slab[:, :20], before[:, :20])
    assert torch.equal(slab[:, 20 + kept :], before[:, 20 + kept :])
