"""A server on a port: listening, and ending in good order."""

import gc
import logging
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Protocol

import uvicorn
from starlette.applications import Starlette

from winnow.errors import InputError
from winnow.server.doors import Door
from winnow.server.settings import Settings

LATE_S = 2.0  # after its time, that what is under way has to say how it ended


class Answering(Protocol):
    """What answers requests: a service, or a front of several."""

    settings: Settings
    door: Door

    def end(self) -> None:
        """End all that is under way with an error."""
        ...


def bound(host: str, port: int) -> socket.socket:
    """A socket that has the address and does not listen yet. Raises InputError where it cannot have it."""
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        place = socket.socket(family, kind, protocol)
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(address)
    except (OSError, UnicodeError) as error:
        raise _taken(host, port, error) from error
    return place


def _taken(host: str, port: int, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or error
    return InputError(f"cannot listen on {host}:{port}: {reason}; choose with --host and --port")


def address(place: socket.socket) -> str:
    """Where clients reach it, such as http://127.0.0.1:8000."""
    host, port = place.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(app: Starlette, service: Answering, place: socket.socket, ready: Callable[[], object] = lambda: None) -> int:
    """Answer until told to end, by SIGTERM or Ctrl-C: then no request begins, and those under way are finished.

    A second signal ends at once. ready: called when it listens. Returns the exit code: 0, or 128 and the signal.
    """
    server = Draining(config_of(app), service, ready)
    gc.collect()
    gc.freeze()  # or some requests would wait until a collection has looked through all of a model's objects
    server.run(sockets=[place])
    return server.code


def config_of(app: Starlette) -> uvicorn.Config:
    """What uvicorn is told: no log of requests, and a second for what does not end by itself."""
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=1,
    )


class Draining(uvicorn.Server):
    """Ends when those inside are done, or their time is."""

    def __init__(self, config: uvicorn.Config, service: Answering, ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._service, self._ready = service, ready
        self._until: float | None = None
        self.code = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except OSError as error:  # another server has begun to listen there since the address was bound
            settings = self._service.settings
            raise _taken(settings.host, settings.port, error) from error
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._until is None:
            self._service.door.closed = True
            self._until = time.monotonic() + self._service.settings.drain_s
        else:
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # what is cut off now is so on purpose
            self.code = 128 + sig
            self.should_exit = self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        if self._until is not None:
            late_s = time.monotonic() - self._until
            if late_s >= 0:
                self._service.end()
            # Who has not sent all of a request, or does not read an answer, is waited for no longer.
            if not self._service.door.inside or late_s >= LATE_S:
                self.should_exit = True
        return await super().on_tick(counter)
