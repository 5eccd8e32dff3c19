"""Print the hash of what `make test-full` is about: the engine, its policies, kernels and models."""

import hashlib
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "winnow"
FOLDERS = ("engine", "runtime", "cache", "policies", "kernels", "models")

paths = [path for folder in FOLDERS for path in (PACKAGE / folder).rglob("*.py")] + [PACKAGE / "plan.py"]
found = hashlib.sha256()
for name, path in sorted((path.relative_to(PACKAGE).as_posix(), path) for path in paths):
    found.update(f"{name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
print(found.hexdigest())
