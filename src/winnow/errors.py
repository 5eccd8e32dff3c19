"""Every error Winnow raises on purpose.

    WinnowError
    ├── PlanError              a plan, policy or parameter that is unknown, invalid, or cannot be combined
    ├── InputError             a prompt, token id, sampling parameter or data file that cannot be used
    ├── ModelError             a model that cannot be loaded (missing directory, damaged file, no model in it)
    │   └── UnsupportedModelError   a model that loads, but has something Winnow does not know; names it
    ├── CapacityError          more positions or memory than the model or the machine has
    └── MissingExtraError      an optional dependency that the caller asked for is not installed

Messages hold the value seen, the rule, and the way out. ValueError and TypeError are about code that calls a function
inside, such as a kernel, against its docstring; nothing that a user gives ends in one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class WinnowError(Exception):
    """Base of every error raised on purpose; the command line prints it on one line and exits with 2."""


class PlanError(WinnowError):
    """The plan's text, a policy's parameters, or a combination of policies is not valid."""


class InputError(WinnowError):
    """A prompt, token id, sampling parameter or data file cannot be used."""


class ModelError(WinnowError):
    """A model directory or hub id cannot be loaded."""


class UnsupportedModelError(ModelError):
    """The model has an architecture or setting that Winnow does not know, so it refuses to run it."""


class CapacityError(WinnowError):
    """The request needs more positions or memory than there are."""


class MissingExtraError(WinnowError):
    """An optional dependency is needed for what was asked."""


def out_of_memory(error: BaseException) -> bool:
    """Whether Python or torch had too little memory; torch says it on CPUs with a plain RuntimeError."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or (
        isinstance(error, RuntimeError) and "not enough memory" in str(error)
    )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within, `path` is written: what the operating system says against it becomes an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
