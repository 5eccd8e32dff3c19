"""Parts that are dealt to threads: each once, with the arguments that Python gave."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba")

from winnow.kernels import dealt, launch
from winnow.kernels.dealt import arguments, kernel
from winnow.kernels.simd.memory import write_f32, write_i64
from winnow.kernels.team import fetch_add

KINDS = "iifbb"


@kernel(KINDS)
def noted_kernel(part: int, parts: int, place: int) -> None:
    """Notes a part's number, what it was given, and how many parts there are."""
    out, size, number, yes, no = arguments(place, KINDS)
    mine = out + size * part
    fetch_add(mine, part + 1)
    write_f32(mine + 8, number)
    write_i64(mine + 16, (1 if yes else 0) + (2 if no else 0))
    fetch_add(mine + 24, parts)


@pytest.mark.threads
@pytest.mark.parametrize("parts", [0, 1, 2, 7, 100])
def test_every_part_is_entered_once_with_the_arguments(parts):
    out = np.zeros((parts, 4), dtype=np.int64)
    noted_kernel(parts, out.ctypes.data, 32, 0.1, True, False)
    assert out[:, 0].tolist() == list(range(1, parts + 1))
    assert out[:, 1].astype(np.int32).view(np.float32).tolist() == [np.float32(0.1)] * parts
    assert (out[:, 2] == 1).all()
    assert (out[:, 3] == parts).all()


@pytest.mark.parametrize("given", [(), (1, 2, 3.0, True), (1, 2, 3.0, True, False, 0)])
def test_another_number_of_arguments_is_refused(given):
    with pytest.raises(TypeError, match=f"takes 5 arguments, not {len(given)}"):
        noted_kernel(1, *given)


def test_a_kernel_has_its_bodys_docstring():
    assert noted_kernel.__doc__ == "Notes a part's number, what it was given, and how many parts there are."


@pytest.mark.parametrize("misses", [{}, {"a signature": 1}])
def test_that_kernels_are_compiled_is_said_where_none_were_kept(misses, monkeypatch, caplog):
    monkeypatch.setattr(dealt, "deal", SimpleNamespace(stats=SimpleNamespace(cache_misses=misses)))
    launch._say_what_is_compiled.__wrapped__()
    assert ("compiling kernels for this CPU, once" in caplog.text) == bool(misses)
