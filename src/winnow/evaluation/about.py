"""The revision of the code that a figure was measured with."""

import subprocess
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


@cache
def commit() -> str:
    """Of the repository that the package lies in, with "+" where its files have been changed since; else "unknown"."""
    try:
        _git("ls-files", "--error-unmatch", __file__)  # a package installed below some repository is not of it
        revision, changed = _git("rev-parse", "--short", "HEAD"), _git("status", "--porcelain", "--", str(PACKAGE))
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return revision + "+" * bool(changed)


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=PACKAGE, capture_output=True, text=True, check=True)
    return done.stdout.strip()
