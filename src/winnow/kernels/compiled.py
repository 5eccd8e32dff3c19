"""What Numba has compiled and keeps beside the sources.

Numba compiles a function anew where its own file has changed, but not where that of a function it calls has: after an
upgrade machine code of both would meet.
"""

import hashlib
import os
import tempfile
from pathlib import Path

STAMP = "compiled-from"  # in the __pycache__ of the folder


def forget_older(folder: Path) -> None:
    """Remove what was compiled of any Python file below `folder` when one of them was another.

    Where the folder cannot be written nothing is done, and nothing fails: Numba then keeps what it compiles in a folder
    of the user's, of which this knows nothing.
    """
    known = hashlib.sha256()
    for source in sorted(folder.rglob("*.py")):
        known.update(f"{source.relative_to(folder)}\0".encode() + source.read_bytes())
    stamp = folder / "__pycache__" / STAMP
    try:
        if stamp.is_file() and stamp.read_text() == known.hexdigest():
            return
        stamp.parent.mkdir(exist_ok=True)
        for compiled in [*folder.rglob("__pycache__/*.nbi"), *folder.rglob("__pycache__/*.nbc")]:
            compiled.unlink(missing_ok=True)
        # Written whole or not at all: other processes may begin at the same time.
        with tempfile.NamedTemporaryFile("w", dir=stamp.parent, delete=False) as file:
            file.write(known.hexdigest())
        os.chmod(file.name, 0o644)  # other users of the installation read it, too
        os.replace(file.name, stamp)
    except OSError:  # not permitted, or a file system that is mounted to be read only
        return
