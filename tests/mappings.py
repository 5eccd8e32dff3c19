"""What of a directory this process has in its address space, as the system tells it."""

import mmap
import re
from pathlib import Path

import numpy as np

MAPS, DETAILS, PAGES = (Path("/proc/self") / name for name in ("maps", "smaps", "pagemap"))
HEAD = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+ *(.*)$")
PRESENT = 63  # the bit of a page's eight bytes that says whether it is in memory


def mappings(folder):
    """(bytes, resident bytes, flags) of every file of a directory that is mapped, those without a name too.

    The system goes through all memory of the process for this: what is looked at often is below.
    """
    found, inside = [], False
    for line in DETAILS.read_text().splitlines():
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
    return sum(last - first for first, last in _ranges(folder))


def resident(folder):
    """How many of them are in this process's memory."""
    count = 0
    with PAGES.open("rb") as pages:
        for first, last in _ranges(folder):
            pages.seek(first // mmap.PAGESIZE * 8)
            count += int((np.frombuffer(pages.read((last - first) // mmap.PAGESIZE * 8), "u8") >> PRESENT).sum())
    return count * mmap.PAGESIZE


def _ranges(folder):
    """First and last address of every file that is mapped."""
    lines = (line for line in MAPS.read_text().splitlines() if f" {folder}/" in line)
    return [tuple(int(each, 16) for each in line.split()[0].split("-")) for line in lines]
