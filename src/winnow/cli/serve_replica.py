"""One process of `winnow serve --replicas`: it answers its front, and ends with it."""

import json
import os
import pickle
import sys
import threading

from winnow.cli.commands.serve import Serve
from winnow.cli.leaving import leave
from winnow.cli.serve import load_service
from winnow.errors import WinnowError
from winnow.server.app import new_app
from winnow.server.run import bound, serve


def main() -> int:
    """Answer until told to end; returns the exit code. The options come from standard input."""
    options: Serve = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_front, daemon=True).start()
    try:
        place = bound(options.settings.host, options.settings.port)
        service = load_service(options, fronted=True)
    except WinnowError as error:
        _tell(error=str(error))
        return 2
    about = {"port": place.getsockname()[1], "pid": os.getpid(), "name": service.name, "plan": str(service.plan)}
    return serve(new_app(service), service, place, lambda: _tell(**about))


def _tell(**said: object) -> None:
    print(json.dumps(said), flush=True)


def _end_with_front() -> None:
    """Nobody is left to answer once standard input has ended."""
    while os.read(0, 2**16):  # not of the buffer, whose lock would be held when this process ends by itself
        pass
    os._exit(1)


if __name__ == "__main__":
    leave(main())
