"""Replicas on this machine: a process each, started anew where it ends."""

import asyncio
import json
import logging
import secrets
import sys
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import httpx2

from winnow.errors import InputError
from winnow.server.errors import ApiError
from winnow.server.events import is_ending
from winnow.server.replicas import Asked, Head, Lost

log = logging.getLogger("winnow.server")
PATIENCE_S = 60.0  # that a request waits for a replica where there is none
PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0  # before a process that has ended is started anew; twice as long every time
UNSAID = b'{"error": "a replica ended before it could answer"}'
STILL_S = 1.0  # that a process has to end which has broken a connection
METRICS_S = 5.0  # that a process has to show its figures
GRACE_S = 5.0  # that processes have to end


@dataclass(eq=False)
class Worker:
    """A process that answers. about: what it said of itself when it could. inside: requests that it has."""

    number: int
    process: asyncio.subprocess.Process
    about: dict[str, Any]
    inside: int = 0


class Workers:
    """So many processes, ready within the context. Implements `Replicas`.

    command, told: what starts one, and what it reads from its standard input, which ends when this process does. It
    writes a line of JSON when it listens: `port` and what else is to be known of it, or `error`.
    """

    def __init__(self, command: Sequence[str], told: bytes, token: str, count: int) -> None:
        self._command, self._told, self._count = command, told, count
        self._key = {"authorization": f"Bearer {token}"}
        self._ready: dict[int, Worker] = {}
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._any, self._ending = asyncio.Event(), False
        self._tasks: list[asyncio.Task[None]] = []
        # A connection for each request: one that is kept may end just when it is used, as if the process had.
        self._client = httpx2.AsyncClient(
            timeout=None, trust_env=False, limits=httpx2.Limits(max_keepalive_connections=0)
        )

    async def __aenter__(self) -> "Workers":
        """Start them. Raises InputError with what one says that cannot."""
        begun = [asyncio.get_running_loop().create_future() for _ in range(self._count)]
        self._tasks = [asyncio.create_task(self._keep(number, each)) for number, each in enumerate(begun)]
        try:
            await asyncio.gather(*begun)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        self.end()
        _, running = await asyncio.wait(self._tasks, timeout=GRACE_S)
        for process in self._processes.values():
            _kill(process)
        for task in running:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    @property
    def ready(self) -> int:
        return len(self._ready)

    @property
    def about(self) -> dict[str, Any]:
        """What one of them has said of itself."""
        return next(iter(self._ready.values())).about

    @property
    def workers(self) -> list[Worker]:
        """Those that can be asked."""
        return [self._ready[number] for number in sorted(self._ready)]

    async def ask(self, asked: Asked) -> AsyncGenerator[Head | bytes, None]:
        worker = await self._chosen(asked.session)
        try:
            url = _url(worker, asked.path)
        except (httpx2.InvalidURL, UnicodeError) as error:
            raise ApiError(400, "the path has characters that no path has, or too many; ask for another") from error
        headers = [(name.encode(), value.encode("latin-1")) for name, value in {**asked.headers, **self._key}.items()]
        worker.inside += 1
        try:
            async with self._client.stream(asked.method, url, headers=headers, content=asked.body) as reply:
                said = await reply.aread() if reply.status_code == 503 else b""
                if not self._ending and is_ending(said):
                    self._drop(worker)
                    raise Lost
                yield Head(reply.status_code, dict(reply.headers))
                if said:
                    yield said
                    return
                async for part in reply.aiter_raw():
                    yield part
        except httpx2.LocalProtocolError as error:  # nothing has been sent
            raise ApiError(400, f"the request cannot be passed on: {error}") from error
        except httpx2.TransportError as error:
            if isinstance(error, httpx2.ConnectError) and not _refused(error):
                message = "the server cannot open another connection; come back in a moment"
                raise ApiError(503, message, code="overloaded", headers={"Retry-After": "5"}) from error
            self._drop(worker)
            raise Lost from error
        finally:
            worker.inside -= 1

    async def metrics(self) -> dict[str, str]:
        found = {}
        for worker in self.workers:
            try:
                reply = await self._client.get(_url(worker, "/metrics"), headers=self._key, timeout=METRICS_S)
            except httpx2.TransportError:
                continue  # it has just ended, or does not answer
            if reply.status_code == 200:
                found[str(worker.number)] = reply.text
        return found

    def end(self) -> None:
        if not self._ending:
            self._ending = True
            self._any.set()
            for process in self._processes.values():
                if process.returncode is None:
                    process.terminate()
                    asyncio.get_running_loop().call_later(GRACE_S, _kill, process)

    async def _chosen(self, session: str | None) -> Worker:
        """The session's own process, as long as it is there; else the one with the fewest requests."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not self._ready and not self._ending:
                    await self._any.wait()
        except TimeoutError:
            message = "no replica is there to answer; come back in a moment"
            raise ApiError(503, message, code="no_replica", headers={"Retry-After": "5"}) from None
        if self._ending:
            raise ApiError(503, "the server ended before this answer did", code="shutting_down")
        if session is None:
            return min(self.workers, key=lambda worker: (worker.inside, worker.number))
        # Rendezvous hashing: of the sessions of one that ends, and of no others, each goes somewhere else.
        return max(self.workers, key=lambda worker: sha256(f"{worker.number} {session}".encode()).digest())

    def _drop(self, worker: Worker) -> None:
        """Ask it no more. One that breaks a connection and still runs is in no state that is known: it is ended."""
        if self._ready.get(worker.number) is worker:
            del self._ready[worker.number]
        if not self._ready and not self._ending:
            self._any.clear()
        if worker.process.returncode is None:
            asyncio.get_running_loop().call_later(STILL_S, _kill, worker.process)

    async def _keep(self, number: int, begun: "asyncio.Future[None]") -> None:
        """Keep a process: one that ends is started anew."""
        pause = PAUSE_S
        while not self._ending:
            try:
                why = f"ended with code {await self._live(number, begun)}"
                pause = PAUSE_S
            except Exception as error:
                if not begun.done():
                    begun.set_exception(error if isinstance(error, InputError) else InputError(f"a replica: {error}"))
                    return
                why = f"could not be started: {error}"
            if not self._ending:
                log.warning("replica %d %s; starting it anew", number, why)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
        self._any.set()  # who waits for one is told that none will come

    async def _live(self, number: int, begun: "asyncio.Future[None]") -> int:
        """A process from its start to its end; its code. Raises InputError with what one says that cannot."""
        process = await self._start(number)
        assert process.stdout is not None
        try:
            said = json.loads(await process.stdout.readline() or UNSAID)
            if "error" in said:
                raise InputError(said["error"])
            worker = self._ready[number] = Worker(number, process, said)
            self._any.set()
            if not begun.done():
                begun.set_result(None)
            rest = asyncio.create_task(_read_on(process.stdout))
            code = await process.wait()
            rest.cancel()
            self._drop(worker)
            return code
        finally:
            _kill(process)
            await process.wait()

    async def _start(self, number: int) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        # In a session of its own: Ctrl-C in a terminal is for the front, which lets answers under way finish.
        process = await asyncio.create_subprocess_exec(
            sys.executable, *self._command, stdin=pipe, stdout=pipe, start_new_session=True
        )
        self._processes[number] = process
        assert process.stdin is not None
        process.stdin.write(self._told)
        await process.stdin.drain()
        return process


async def _read_on(lines: asyncio.StreamReader) -> None:
    """Read what nobody asked for, so that whoever writes it never waits."""
    while await lines.read(2**16):
        pass


def _url(worker: Worker, path: str) -> httpx2.URL:
    """Of a path as it came: it is no part of a text, in which it could name another host."""
    return httpx2.URL(scheme="http", host="127.0.0.1", port=worker.about["port"], raw_path=path.encode("latin-1"))


def _refused(error: BaseException | None) -> bool:
    """Whether nobody listens any more; other errors of connecting, such as too many files, are the front's."""
    while error is not None and not isinstance(error, ConnectionRefusedError):
        error = error.__cause__ or error.__context__
    return error is not None


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()


def new_token() -> str:
    """What a front and its replicas know, and nobody else."""
    return secrets.token_urlsafe(32)
