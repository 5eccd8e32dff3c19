import pytest


@pytest.fixture
def text(text: list[int]) -> list[int]:
    """A prompt and eleven tokens after it: more than a window holds, and two slow steps."""
    return text[:42]
