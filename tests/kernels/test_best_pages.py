"""The pages that a query could match best, against the definition."""

import pytest
import torch

from winnow.kernels.launch import numba_missing
from winnow.kernels.pages import best_pages, best_pages_reference


def given(*, pages: int, heads: int, group: int, head_dim: int, dtype: torch.dtype):
    """A query, and bounds as they lie in memory with room for more, which is NaN."""
    generator = torch.Generator().manual_seed(pages)
    query = torch.randn(heads * group, head_dim, generator=generator).to(dtype)
    room = torch.full((2, heads, pages + 5, head_dim), float("nan"), dtype=dtype)
    keys = torch.randn(2, heads, pages, head_dim, generator=generator).to(dtype)
    room[0, :, 3 : pages + 3], room[1, :, 3 : pages + 3] = keys.amin(0), keys.amax(0)
    return query, *room[:, :, 3 : pages + 3]


@pytest.mark.threads
@pytest.mark.skipif(numba_missing() is not None, reason="the kernel needs Numba")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "group", "head_dim"), [(3, 3, 64), (1, 1, 32), (2, 7, 96)])
@pytest.mark.parametrize(("pages", "count", "page"), [(1, 1, 1), (2, 1, 5), (64, 64, 3), (65, 7, 1), (300, 40, 16)])
def test_equals_the_definition(pages, count, page, heads, group, head_dim, dtype):
    query, least, greatest = given(pages=pages, heads=heads, group=group, head_dim=head_dim, dtype=dtype)
    got = best_pages(query, least, greatest, page, count)
    expected = best_pages_reference(query, least, greatest, page, count)
    assert torch.equal(got, expected)
    assert got.shape == (heads, count * page)


def test_of_equal_pages_the_first():
    query, least, greatest = (torch.ones(3, pages, 64) for pages in (3, 9, 9))  # to the bit
    for choose in (best_pages, best_pages_reference):
        assert torch.equal(choose(query.flatten(0, 1), least, greatest, 2, 3), torch.arange(6).expand(3, -1))


def test_where_nothing_is_a_number_units_are_still_in_range():
    """No score is best then; what reads the units must not leave memory."""
    query, least, greatest = given(pages=9, heads=3, group=3, head_dim=64, dtype=torch.float32)
    got = best_pages(query * torch.nan, least, greatest, 2, 3)
    assert got.min() >= 0
    assert got.max() < 18


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"count": 0}, "count=0 of 9 pages"),
        ({"count": 10}, "count=10 of 9 pages"),
        ({"query": torch.zeros(8, 64)}, "shapes"),
        ({"query": torch.zeros(9, 64, dtype=torch.bfloat16)}, "one dtype"),
        ({"least": torch.zeros(3, 64, 9).mT}, "side by side"),
    ],
)
def test_bad_input_is_refused(change, says):
    query, least, greatest = given(pages=9, heads=3, group=3, head_dim=64, dtype=torch.float32)
    arguments = {"query": query, "least": least, "greatest": greatest, "page": 2, "count": 3} | change
    with pytest.raises(ValueError, match=says):
        best_pages(**arguments)
