"""Whether Numba can be used, when its kernels are compiled, how many threads they take, and in which process."""

import ctypes
import functools
import importlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from winnow.errors import ModelError

log = logging.getLogger(__name__)
MODULES = (
    "linear.cpu",
    "attend.cpu_decode",
    "attend.cpu_prefill",
    "dots.cpu",
    "select.cpu",
    "pack.cpu",
    "pages.cpu",
    "sparse.cpu",
)
PACKED, LAYERS = "packed.cpu", "layers.cpu"  # what not every model can use


@functools.cache
def numba_missing() -> str | None:
    """Why Numba kernels cannot run here, or None where they can."""
    try:
        importlib.import_module("numba")
    except ImportError as error:  # also a Numba too old for the NumPy that is installed
        return f"Numba does not import ({error}); pip install numba"
    return None


def compile_kernels(device: torch.device, *, packed: bool, layers: bool) -> None:
    """Load the CPU kernels, so that the first token does not: 0.2 s if Numba kept them, a minute or two the first time.

    packed, layers: those of packed weights, and those of several layers at once, too. Numba caches beside the source,
    or in the user's cache directory where that is read-only. Does nothing for other devices, or without Numba.
    """
    if device.type != "cpu" or numba_missing() is not None:
        return
    start = time.perf_counter()
    try:
        _say_what_is_compiled()
        for module in (*MODULES, *[PACKED] * packed, *[LAYERS] * layers):
            importlib.import_module(f"winnow.kernels.{module}")
    except RuntimeError as error:
        if "no locator available" not in str(error):  # for a cache: neither the sources' folder nor the user's
            raise
        raise ModelError(f"{error}; set NUMBA_CACHE_DIR to a folder that can be written") from error
    log.debug("CPU kernels loaded in %.1f s", time.perf_counter() - start)


@functools.cache
def _say_what_is_compiled() -> None:
    from winnow.kernels.dealt import deal

    if deal.stats.cache_misses:  # then none of the others is in Numba's cache
        log.warning("compiling kernels for this CPU, once: that takes a minute or two")


_matched = threading.local()
_processes: set[int] = set()  # in which threads of kernels were started


def match_torch_threads() -> None:
    """Give the calling thread's Numba kernels as many threads as torch's have.

    torch loads its libgomp for the whole process, and Numba's OpenMP layer takes that one, so both have one pool. When
    Numba starts it sets OpenMP's thread count to its own, which torch would then follow; it is put back.
    """
    threads = torch.get_num_threads()
    if getattr(_matched, "threads", None) == threads:
        return
    import numba
    from numba.core import config

    _processes.add(os.getpid())
    most: int = config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    numba.set_num_threads(min(threads, most))
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    _matched.threads = threads


def running_threads() -> int:
    """On how many threads the calling thread's Numba kernels run now: torch's number, or fewer within `at_most`."""
    import numba

    match_torch_threads()
    return int(numba.get_num_threads())


def parts_of_work() -> int:
    """Into how many parts kernels cut their work: torch's threads, whatever `at_most` says."""
    return getattr(_matched, "parts", None) or torch.get_num_threads()


@functools.cache
def openmp() -> Any:
    """OpenMP's functions as torch calls them, or None where they are not to be had, or torch has other threads.

    Their count is the calling thread's alone; that of `torch.set_num_threads` is also for threads that use torch later.
    """
    try:
        library = ctypes.CDLL(torch._C.__file__)
        change = library.omp_set_num_threads
    except (OSError, AttributeError):
        return None
    threads = torch.get_num_threads()
    change(threads + 1)
    follows = torch.get_num_threads() == threads + 1
    change(threads)
    return library if follows else None


@contextmanager
def at_most(threads: int) -> Iterator[None]:
    """Within, what the calling thread has torch and kernels do takes so many threads; work is cut as it was before."""
    match_torch_threads()  # which may start Numba
    before = torch.get_num_threads()
    _matched.parts = parts_of_work()
    openmp().omp_set_num_threads(min(threads, before))
    try:
        yield
    finally:
        openmp().omp_set_num_threads(before)
        _matched.parts = None


def check_process() -> None:
    """Raise ModelError in a process forked from one whose kernels had started: their threads are not in it.

    OpenMP would wait for them for ever, or end the process.
    """
    if _processes and os.getpid() not in _processes:
        raise ModelError(
            "this process was forked from one in which a model had been loaded, and the threads of its kernels were "
            "left behind; load models in processes that are spawned: multiprocessing.get_context('spawn')"
        )
