"""How a process ends."""

import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn

OURS = "winnow-"  # begins the names of threads that run what cannot be stopped: a step, a text that is encoded


def leave(code: int) -> NoReturn:
    """End this process with an exit code.

    One of our threads would be waited for, however long it takes, or abort the process when it comes back from a step
    to a Python that has gone: where there is one, Python is not taken down in order.
    """
    if not any(thread.name.startswith(OURS) for thread in threading.enumerate()):
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # whoever read it has gone
            stream.flush()
    os._exit(code)
