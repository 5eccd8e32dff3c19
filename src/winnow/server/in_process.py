"""A request to an application of this process, for those that answer by other ways than HTTP."""

import asyncio
from collections.abc import AsyncGenerator
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope

from winnow.server.replicas import Asked, Head


async def replied(app: ASGIApp, asked: Asked) -> AsyncGenerator[Head | bytes, None]:
    """The head of a reply and its body as it comes; closed before, the client has left."""
    messages, left = asyncio.Queue[Message | None](), asyncio.Event()
    unread = [asked.body]

    async def receive() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def run() -> None:
        try:
            await app(_scope(asked), receive, messages.put)
        finally:
            messages.put_nowait(None)

    running = asyncio.create_task(run())
    try:
        while (message := await messages.get()) is not None:
            if message["type"] == "http.response.start":
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
                yield Head(message["status"], headers)
            elif body := message.get("body"):
                yield body
        await running
    finally:
        left.set()
        await asyncio.wait([running])


def _scope(asked: Asked) -> Scope:
    path, _, query = asked.path.partition("?")
    headers = {**asked.headers, "content-length": str(len(asked.body))}
    return {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        "method": asked.method, "scheme": "http", "root_path": "", "path": unquote(path),
        "raw_path": path.encode("latin-1"), "query_string": query.encode("latin-1"),
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
        "client": None, "server": None,
    }  # fmt: skip
