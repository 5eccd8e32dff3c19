"""What of a directory this process has in its address space, as the system tells it."""

import re
from pathlib import Path

MAPS = Path("/proc/self/smaps")
HEAD = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+ *(.*)$")


def mappings(folder):
    """(bytes, resident bytes, flags) of every file of a directory that is mapped, those without a name too."""
    found, inside = [], False
    for line in MAPS.read_text().splitlines():
        if head := HEAD.match(line):
            first, last, path = head.groups()
            inside = path.startswith(f"{folder}/")
            size = int(last, 16) - int(first, 16)
        elif inside and line.startswith("Rss:"):
            resident = 1024 * int(line.split()[1])
        elif inside and line.startswith("VmFlags:"):
            found.append((size, resident, line.split()[1:]))
    return found


def on_disk(folder):
    """Bytes of the files of a directory that are mapped."""
    return sum(size for size, _, _ in mappings(folder))


def resident(folder):
    """How many of them are in this process's memory."""
    return sum(each for _, each, _ in mappings(folder))
