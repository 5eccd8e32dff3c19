"""The units that a query matches best by signs: the kernel against the definition, the definition against itself."""

import pytest
import torch

from winnow.kernels.signs import BLOCK, Signs, best_units, best_units_reference, estimates, pack, rotation, signs_of


def signs(kv_heads, units, head_dim, *, skipped=0, dtype=torch.float32, seed=0):
    """Of keys around a centre that is not 0, and the keys."""
    keys = (1 + torch.randn(kv_heads, units, head_dim, generator=torch.Generator().manual_seed(seed))).to(dtype)
    centre = keys.float().mean(1)
    bits, lengths = signs_of(keys, centre)
    codes = pack(bits, skipped)
    held = torch.full((kv_heads, BLOCK * codes.shape[1]), float("nan"), dtype=torch.bfloat16)
    held[:, skipped : skipped + units] = lengths
    return Signs(codes, held, centre, skipped, units), keys


def queries(q_heads, head_dim, dtype):
    return torch.randn(q_heads, head_dim, generator=torch.Generator().manual_seed(1)).to(dtype)


def test_a_rotation_keeps_products():
    turn = rotation(96, torch.device("cpu"))
    torch.testing.assert_close(turn @ turn.T, torch.eye(96), rtol=0, atol=1e-5)
    assert turn is rotation(96, torch.device("cpu"))


def test_a_word_has_bits_of_sixteen_units_and_four_channels():
    bits = torch.zeros(1, 17, 6, dtype=torch.bool)
    bits[0, 0, 0] = bits[0, 13, 3] = bits[0, 14, 5] = bits[0, 16, 1] = True
    codes = pack(bits, 2)
    assert codes.tolist() == [[[2**8 - 2**63, 0], [2**9, 2]]]


def test_an_estimate_is_exact_of_keys_that_are_their_signs():
    """Where all channels of a turned key are as far from the centre, signs and length say everything."""
    turn, generator = rotation(32, torch.device("cpu")), torch.Generator().manual_seed(5)
    drawn = torch.randint(0, 2, (2, 50, 32), generator=generator)
    centre = torch.randn(2, 32, generator=generator)
    lengths = 2.0 ** torch.randint(-2, 3, (2, 50, 1), generator=generator)  # powers of two are rounded to themselves
    keys = centre[:, None] + lengths * (2.0 * drawn - 1) @ turn.T
    bits, found = signs_of(keys, centre)
    torch.testing.assert_close(found.float(), lengths[..., 0], rtol=1e-2, atol=0)
    levels = torch.randint(-127, 128, (6, 32), generator=generator)
    levels[:, 0] = 127
    q = levels / 64 @ turn.T  # which are not rounded
    held = torch.zeros(2, 64, dtype=torch.bfloat16)
    held[:, :50] = found
    got = estimates(q, Signs(pack(bits, 0), held, centre, 0, 50))
    torch.testing.assert_close(got, q.view(2, 3, 32) @ keys.mT, rtol=0, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(
    ("kv_heads", "units", "head_dim", "skipped", "count"),
    [(1, 1, 32, 0, 1), (2, 40, 64, 5, 7), (3, 333, 64, 15, 100), (1, 100, 128, 3, 100), (2, 4001, 96, 0, 400)],
)
def test_the_kernel_chooses_as_the_definition_does(kv_heads, units, head_dim, skipped, count, group, dtype):
    known, _ = signs(kv_heads, units, head_dim, skipped=skipped, dtype=dtype)
    q = queries(kv_heads * group, head_dim, dtype)
    got, expected = best_units(q, known, count), best_units_reference(q, known, count)
    assert got.shape == (kv_heads, count)
    assert (got.diff(dim=1) > 0).all()
    scores = estimates(q, known).amax(1)
    torch.testing.assert_close(scores.gather(1, got).sort().values, scores.gather(1, expected).sort().values)


def test_parts_of_memory_are_taken_where_they_lie():
    known, _ = signs(2, 200, 64)
    part = Signs(known.codes[:, 3:9], known.lengths[:, 48:144], known.centre, 7, 80)
    q = queries(4, 64, torch.float32)
    expected = estimates(q, known)[..., 55:135]
    torch.testing.assert_close(estimates(q, part), expected)
    assert torch.equal(best_units(q, part, 20), best_units_reference(q, part, 20))


def test_bad_arguments_are_refused():
    known, _ = signs(2, 40, 64)
    with pytest.raises(ValueError, match=r"query \(4, 32\) does not fit keys of 2 x 64"):
        best_units(queries(4, 32, torch.float32), known, 3)
    with pytest.raises(ValueError, match=r"query \(3, 64\) does not fit"):
        best_units(queries(3, 64, torch.float32), known, 3)
    for count in (0, 41):
        with pytest.raises(ValueError, match=f"count={count} of 40 units"):
            best_units(queries(4, 64, torch.float32), known, count)
