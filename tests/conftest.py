"""Options and fixtures every test shares."""

import random
from collections.abc import Iterator

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="run the device-agnostic tests on this device (cpu, cuda)")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.config.getoption("--device")
    if name.startswith("cuda") and not torch.cuda.is_available():
        pytest.skip(f"--device {name} was asked for, but torch sees no GPU")
    return name


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Converted GGUF files go to a folder of this session, so a real one is converted once, and never to the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINNOW_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def text() -> list[int]:
    """48 random token ids of the small models' vocabulary."""
    source = random.Random(7)
    return [source.randrange(3, 97) for _ in range(48)]
