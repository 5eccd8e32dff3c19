"""The logits of one row against their definition."""

import pytest
import torch

from winnow.kernels.dots import dots, dots_reference


@pytest.mark.threads
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("group", [1, 2, 3, 8])
@pytest.mark.parametrize("units", [1, 7, 64, 1003])
def test_equals_the_definition(dtype, group, units):
    pytest.importorskip("numba")
    from winnow.kernels.dots.cpu import dots_cpu

    generator = torch.Generator().manual_seed(units)
    q = torch.randn(2 * group, 64, generator=generator).to(dtype)
    slab = torch.full((2, units + 9, 64), float("nan"), dtype=dtype)
    slab[:, 4 : units + 4] = torch.randn(2, units, 64, generator=generator).to(dtype)
    k = slab[:, 4 : units + 4]
    expected = torch.stack([q[h].double() @ k[h // group].double().T for h in range(2 * group)])
    for got in (dots_cpu(q, k), dots_reference(q, k), dots(q, k)):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=1e-4)
