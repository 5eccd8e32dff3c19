"""The files that a command writes, checked before any work; nothing here loads torch."""

from importlib.util import find_spec
from itertools import combinations
from pathlib import Path

from cyclopts import ArgumentCollection

from winnow.errors import InputError, MissingExtraError, writing

PICTURES = ("--plot", "--retained")


def check_outputs(arguments: ArgumentCollection) -> None:
    """Raise InputError where a file cannot be written or is named twice, MissingExtraError where none can be drawn."""
    given = {each.name: each.value if each.has_tokens else each.field_info.default for each in arguments}
    paths = {name: path for name, path in given.items() if isinstance(path, Path)}
    for (one, path), (other, same) in combinations(paths.items(), 2):
        if path.resolve() == same.resolve():
            raise InputError(f"{one} and {other} are both {path}; give two names")
    for name, path in paths.items():
        check_writable(path)
        if name in PICTURES:
            need_matplotlib(name)


def check_writable(path: Path) -> None:
    """Raise InputError where the file cannot be written; a new one is not left behind."""
    new = not path.exists()
    with writing(path), path.open("ab"):
        pass
    if new:
        path.unlink()


def need_matplotlib(option: str) -> None:
    """Raise MissingExtraError where plots cannot be drawn."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError(f"{option} needs matplotlib; install winnow with its extra 'bench'")
