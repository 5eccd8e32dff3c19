"""The kernels as they are compiled for CPUs that have fewer instructions than this one may have."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = """
import torch
from winnow.kernels.attend import attend, attend_reference, kernel_for
from winnow.kernels.launch import compile_kernels

compile_kernels(torch.device("cpu"), packed=True, layers=True)
made = torch.Generator().manual_seed(0)
for rows, kernel in ((1, "decode"), (100, "prefill")):
    for dtype, near in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        q, k, v = (torch.randn(n, m, 64, generator=made).to(dtype) for n, m in ((rows, 4), (2, 300), (2, 300)))
        places = torch.arange(300 - rows, 300), torch.arange(300)
        assert kernel_for("cpu", dtype, rows * 2, 64, plain=True) == kernel
        wanted, _ = attend_reference(q.float(), k.float(), v.float(), *places, scale=0.2)
        torch.testing.assert_close(attend(q, k, v, *places, scale=0.2).float(), wanted, rtol=near, atol=near)
"""


@pytest.mark.full
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="its name is of x86")
def test_every_kernel_is_compiled_for_a_cpu_without_avx512(tmp_path: Path) -> None:
    """LLVM ends the process where it is told to use an instruction that there is not."""
    given = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "NUMBA_CPU_NAME": "x86-64-v3",
        "NUMBA_CPU_FEATURES": "",  # else this CPU's are added
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    done = subprocess.run([sys.executable, "-c", KERNELS], env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
