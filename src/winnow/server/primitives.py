"""How many products of matrices torch keeps compiled: some for every number of rows, which prompts have without end."""

import os

KEPT = 64  # of several numbers of rows all those of a layer; the default is 1024
CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")  # oneDNN's, and that of torch over it


def keep_few_primitives() -> None:
    """Bound what a server that is asked prompts of every length keeps, unless the environment says otherwise.

    Both are read once, when the first product is computed: call it before.
    """
    for name in CACHES:
        os.environ.setdefault(name, str(KEPT))
