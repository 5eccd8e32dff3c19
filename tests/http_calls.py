"""Requests to an application in this process: what a client sends, what it gets, and a client that leaves."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

App = Callable[..., Awaitable[None]]


@dataclass
class Reply:
    """status: 0 as long as there is none."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """What a stream said, without its end mark; each event is one `data:` line."""
        parts = self.body.decode().split("\n\n")
        assert parts.pop() == ""
        assert all(part.startswith("data: ") and "\n" not in part for part in parts)
        return [json.loads(part[6:]) for part in parts if part != "data: [DONE]"]

    @property
    def done(self) -> bool:
        """Whether a stream ended as one that has succeeded does."""
        return self.body.endswith(b"data: [DONE]\n\n")


async def call(
    app: App,
    method: str,
    path: str,
    body: Any = None,
    *,
    raw: bytes | None = None,
    headers: Sequence[tuple[str, str]] = (),
    leave: Callable[[Reply], bool] = lambda reply: False,
    gone: asyncio.Event | None = None,
) -> Reply:
    """One request. raw: the body as it is. leave: asked after every part; gone: set from outside: the client leaves."""
    data = raw if raw is not None else (b"" if body is None else json.dumps(body).encode())
    sent = [(b"host", b"test"), (b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    given = {name.lower().encode(): value.encode() for name, value in headers}
    everything = [pair for pair in sent if pair[0] not in given] + list(given.items())
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": method,
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http",
        "headers": everything, "client": ("127.0.0.1", 1), "server": ("test", 80),
    }  # fmt: skip
    reply, left, unread = Reply(), gone or asyncio.Event(), [data]

    async def receive() -> dict[str, Any]:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            reply.body += message.get("body", b"")
            reply.ended = not message.get("more_body", False)
        if reply.ended or leave(reply):
            left.set()

    await app(scope, receive, send)
    return reply


def ask(app: App, path: str, body: Any = None, **settings: Any) -> Reply:
    """One request from start to end, which comes within half a minute: a POST where there is a body, else a GET."""
    method = settings.pop("method", "GET" if body is None and "raw" not in settings else "POST")
    return asyncio.run(asyncio.wait_for(call(app, method, path, body, **settings), 30))


def quiet(service: Any, seconds: float = 5.0) -> bool:
    """Wait until an engine has nothing to do; whether that came about."""
    end = time.monotonic() + seconds
    while not service.engine.idle and time.monotonic() < end:
        time.sleep(0.005)
    return bool(service.engine.idle and service.engine.reserved_bytes == 0)
