"""Events of a stream, and clients that leave; it loads nothing heavy, since a front has no model."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive

Some = TypeVar("Some")
STREAM = "text/event-stream"
STARTS, END = b"data: ", b"\n\n"
DONE = STARTS + b"[DONE]" + END
GO_ON = "/go_on"  # before a path, from a front: the same request, with the tokens that it has come to
LEFT = Response(status_code=499)  # to a client that is not there any more


def event(data: dict[str, Any]) -> bytes:
    return STARTS + json.dumps(data, ensure_ascii=False, allow_nan=False).encode() + END


def is_ending(said: bytes) -> bool:
    """Whether an error's body says that the server that was asked ends."""
    return b'"shutting_down"' in said and json.loads(said)["error"]["code"] == "shutting_down"


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Some]) -> Some | None:
    """What `work` comes to, or None once the client has left; then it is cancelled."""
    answer, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        answer.cancel()
        gone.cancel()
        await asyncio.wait((answer, gone))


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
