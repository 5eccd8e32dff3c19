"""Free memory that an allocator keeps, given back to the system."""

import ctypes
import sys


def give_back() -> None:
    """Give back what has been freed and is kept for later; does nothing where the C library cannot.

    glibc does it by itself only for the end of a heap: what is free between blocks in use stays resident, and blocks of
    requests of all sizes leave more of it the longer a server runs.
    """
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
