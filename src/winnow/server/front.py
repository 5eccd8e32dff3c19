"""What clients of several replicas talk to: it passes requests on, and streams that it passes on outlive a replica."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from urllib.parse import unquote

from prometheus_client import CollectorRegistry, Counter, Gauge
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from winnow.server.attempt import Attempt
from winnow.server.deadline import Deadline
from winnow.server.doors import Door, add_doors
from winnow.server.errors import ApiError, failed, no_such_path, unanswerable
from winnow.server.events import END, GO_ON, LEFT, STREAM, event, is_ending, unless_gone
from winnow.server.labelled import PREFIX, labelled
from winnow.server.passage import Passage
from winnow.server.replicas import Asked, Head, Lost, Replicas
from winnow.server.settings import Settings

SESSION = "x-session-id"
PASSED = ("content-type", "accept", "host")  # headers of a request that replicas are told
KEPT = ("connection", "content-length", "date", "keep-alive", "server", "transfer-encoding")  # a hop's own
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Front:
    """Answers with what replicas answer."""

    def __init__(self, replicas: Replicas, settings: Settings) -> None:
        self.settings, self.door = settings, Door(settings.max_connections)
        self._replicas, self._ended = replicas, False
        self._figures = CollectorRegistry()
        about = "Replicas that have gone with an answer under way, which went on elsewhere"
        self._lost = Counter(PREFIX + "answers_gone_on_with_total", about, registry=self._figures)
        ready = Gauge(PREFIX + "replicas_ready", "Replicas that can be asked", registry=self._figures)
        ready.set_function(lambda: replicas.ready)

    async def respond(self, http: Request) -> Response:
        """What a replica says to a request. Raises ApiError where none can."""
        if http.url.path == "/health":
            return self._health()
        if http.url.path == "/metrics":
            text = labelled(await self._replicas.metrics(), self._figures)
            return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
        deadline = Deadline(self.settings.timeout_s, http.state.arrived)
        try:
            asked = _asked(http, await http.body())
        except ClientDisconnect:
            return LEFT
        if not _is_open(asked.path):
            raise no_such_path(http)
        reply = await unless_gone(http.receive, deadline.keep(self._begun(asked, deadline)))
        return LEFT if reply is None else reply

    def end(self) -> None:
        """End all that is under way with an error."""
        self._ended = True
        self._replicas.end()

    def is_lost(self, said: bytes) -> bool:
        """Whether an error says that its replica ends while the front does not."""
        return not self._ended and is_ending(said)

    async def _begun(self, asked: Asked, deadline: Deadline) -> Response:
        """The whole of a reply, or a stream that has begun."""
        attempt = Attempt(self._replicas, self._lost.inc)
        try:
            while True:
                head = await attempt.begin(asked)
                if head.headers.get("content-type", "").startswith(STREAM):
                    return Relay(self, attempt, asked, head, deadline)
                try:
                    body = b"".join([part async for part in attempt.parts()])
                except Lost:
                    attempt.lose()
                    continue
                if head.status == 503 and self.is_lost(body):
                    attempt.lose()
                    continue
                await attempt.close()
                return Response(body, head.status, _kept(head))
        except BaseException:
            await attempt.close()
            raise

    def _health(self) -> Response:
        ready = self._replicas.ready
        return JSONResponse({"status": "ok" if ready else "no replica", "replicas": ready}, 200 if ready else 503)


class Relay(Response):
    """A stream as the client gets it; another replica goes on with it where the one that it comes from goes away."""

    def __init__(self, front: Front, attempt: Attempt, asked: Asked, head: Head, deadline: Deadline) -> None:
        self.background, self.status_code = None, head.status
        self.init_headers(_kept(head))
        self._front, self._attempt, self._passage, self._deadline = front, attempt, Passage(asked), deadline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send(send))
        finally:
            await self._attempt.close()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for said in self._in_time():
            await send({"type": "http.response.body", "body": said, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _in_time(self) -> AsyncGenerator[bytes, None]:
        """All events of the stream; of one that is late, or that nobody can go on with, the error and no end."""
        events = self._events()
        try:
            while (said := await self._deadline.keep(anext(events, None))) is not None:
                yield said
        except Exception as error:
            yield event(failed(error).body)

    async def _events(self) -> AsyncGenerator[bytes, None]:
        """All events, each once. Raises ApiError where nobody can go on."""
        while not self._passage.ended:
            try:
                async for said in self._arriving():
                    if (made := self._passage.take(said)) is not None:
                        yield made
            except Lost:
                if self._passage.ended:
                    return
                self._attempt.lose()
                await self._attempt.go_on(self._passage.rest())

    async def _arriving(self) -> AsyncGenerator[bytes, None]:
        """Events of one replica up to the last one. Raises Lost where that does not come."""
        left = b""
        async for part in self._attempt.parts():
            *whole, left = (left + part).split(END)
            for said in whole:
                if said.startswith(b'data: {"error"') and self._front.is_lost(said[6:]):
                    raise Lost
                yield said
        if not self._passage.ended:
            raise Lost


def new_front_app(front: Front) -> Starlette:
    """The application over a front."""

    async def respond(request: Request) -> Response:
        return await front.respond(request)

    async def said(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError | HTTPException)
        return (error if isinstance(error, ApiError) else unanswerable(request, error)).response()

    handlers: dict[int | type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
        ApiError: said, HTTPException: said,
    }  # fmt: skip
    app = Starlette(routes=[Route("/{path:path}", respond, methods=METHODS)], exception_handlers=handlers)
    add_doors(app, front.settings, front.door)
    return app


def _asked(http: Request, body: bytes) -> Asked:
    path = http.scope["raw_path"].decode("latin-1")
    query = http.scope["query_string"].decode("latin-1")
    given = Headers(scope=http.scope)
    headers = {name: given[name].strip() for name in PASSED if name in given}
    return Asked(http.method, f"{path}?{query}" if query else path, headers, body, given.get(SESSION))


def _is_open(path: str) -> bool:
    """Whether clients may ask for it: a plain path, which no reading makes the front's own way, or another host's."""
    segments = unquote(path.partition("?")[0]).split("/")
    return path.startswith("/") and not {".", ".."} & set(segments) and segments[1] != GO_ON[1:]


def _kept(head: Head) -> dict[str, str]:
    return {name: value for name, value in head.headers.items() if name not in KEPT}
