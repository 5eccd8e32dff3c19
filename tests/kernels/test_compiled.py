"""What Numba keeps is removed when any source has changed, and only then."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from winnow.errors import ModelError
from winnow.kernels import launch
from winnow.kernels.compiled import forget_older


@pytest.fixture
def folder(tmp_path):
    """Two sources, and what was compiled of the one that stays as it is."""
    (tmp_path / "inner" / "__pycache__").mkdir(parents=True)
    (tmp_path / "inner" / "caller.py").write_text("from callee import f\n")
    (tmp_path / "callee.py").write_text("f = 1\n")
    forget_older(tmp_path)
    (tmp_path / "inner" / "__pycache__" / "caller.g-1.py311.nbi").write_text("index")
    (tmp_path / "inner" / "__pycache__" / "caller.g-1.py311.1.nbc").write_text("code")
    (tmp_path / "inner" / "__pycache__" / "caller.cpython-311.pyc").write_text("bytecode")
    return tmp_path


def kept(folder):
    return sorted(path.suffix for path in (folder / "inner" / "__pycache__").iterdir())


def test_what_is_as_old_as_its_sources_stays(folder):
    forget_older(folder)
    assert kept(folder) == [".nbc", ".nbi", ".pyc"]


@pytest.mark.parametrize("change", ["callee.py", "more.py", "callee.py -> other.py"])
def test_what_was_compiled_with_another_callee_goes(folder, change):
    first, _, other = change.partition(" -> ")
    if other:
        (folder / first).rename(folder / other)
    else:
        (folder / first).write_text("f = 2\n")
    forget_older(folder)
    assert kept(folder) == [".pyc"]
    (folder / "inner" / "__pycache__" / "caller.g-1.py311.nbi").write_text("index")
    forget_older(folder)
    assert kept(folder) == [".nbi", ".pyc"]


def test_every_user_reads_what_one_has_left(folder, monkeypatch):
    """Also a note that cannot be read stops nobody."""
    [stamp] = (folder / "__pycache__").iterdir()
    assert stamp.stat().st_mode & 0o777 == 0o644

    def refused(*given, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refused)
    forget_older(folder)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_folder_that_cannot_be_written_is_left_alone(folder, code, monkeypatch):
    def refused(*given, **options):
        raise OSError(code, os.strerror(code))

    (folder / "callee.py").write_text("f = 2\n")
    monkeypatch.setattr(Path, "unlink", refused)
    monkeypatch.setattr("tempfile.NamedTemporaryFile", refused)
    forget_older(folder)
    assert kept(folder) == [".nbc", ".nbi", ".pyc"]
    monkeypatch.undo()
    forget_older(folder)  # once it can
    assert kept(folder) == [".pyc"]


@pytest.mark.parametrize(
    ("raised", "error"),
    [("cannot cache function 'f': no locator available for file 'f.py'", ModelError), ("another", RuntimeError)],
)
def test_nowhere_to_keep_what_is_compiled_is_one_error(monkeypatch, raised, error):
    def compiles():
        raise RuntimeError(raised)

    monkeypatch.setattr(launch, "numba_missing", lambda: None)
    monkeypatch.setattr(launch, "_say_what_is_compiled", compiles)
    with pytest.raises(error, match="set NUMBA_CACHE_DIR" if error is ModelError else raised):
        launch.compile_kernels(torch.device("cpu"), packed=False, layers=False)


def test_kernels_are_looked_after():
    """On import, and without loading torch or Numba."""
    code = (
        "import sys, pathlib, winnow.kernels as k; from winnow.kernels.compiled import STAMP; "
        "print((pathlib.Path(k.__file__).parent / '__pycache__' / STAMP).is_file(), "
        "'torch' in sys.modules, 'numba' in sys.modules)"
    )
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert got.stdout.split() == ["True", "False", "False"]
