"""From requests to a response: all at once, or as events; whoever leaves takes nothing with them."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from winnow.engine.background import Answers
from winnow.engine.request import Completion
from winnow.server.errors import failed
from winnow.server.fields import Asking
from winnow.server.service import Service
from winnow.server.usage import usage
from winnow.server.views import Json, View

Some = TypeVar("Some")
LEFT = Response(status_code=499)  # to a client that is not there any more


async def respond(service: Service, body: Asking, view: View, http: HttpRequest, deadline: float | None) -> Response:
    """Begin the requests of a view, and answer. Raises ApiError where they cannot begin, or have failed."""
    answers = service.begin(view.requests, list(type(body).model_fields))
    if body.stream:
        shown = body.stream_options is not None and body.stream_options.include_usage
        return EventStream(_events(service, answers, view, shown, deadline), answers)
    whole = await unless_gone(http.receive, _whole(service, answers, view, deadline))
    return LEFT if whole is None else JSONResponse(whole)


class EventStream(StreamingResponse):
    """Events, each sent as soon as it is there; `answers` are closed after the last, or when the client has left."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], answers: Answers) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._answers:
            await unless_gone(receive, self.stream_response(send))


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


async def _whole(service: Service, answers: Answers, view: View, deadline: float | None) -> Json:
    with answers:
        async with aclosing(service.outputs(answers, deadline)) as outputs:
            found = [output.completion async for output in outputs if output.completion is not None]
    ended = sorted(found, key=lambda each: (each.prompt_index, each.sample_index))
    return view.whole(ended, _usage(service, view, ended))


async def _events(
    service: Service, answers: Answers, view: View, shows_usage: bool, deadline: float | None
) -> AsyncIterator[bytes]:
    """Chunks, and the end of the stream; of one that failed, the error and no end."""
    null: Json = {"usage": None} if shows_usage else {}
    ended: list[Completion] = []
    try:
        for chunk in view.opening():
            yield _event({**chunk, **null})
        async with aclosing(service.outputs(answers, deadline)) as outputs:
            async for output in outputs:
                if output.completion is not None:
                    ended.append(output.completion)
                if (made := view.chunk(output)) is not None:
                    yield _event({**made, **null})
        if shows_usage:
            yield _event({**view.frame(view.chunk_kind, []), "usage": _usage(service, view, ended)})
        yield b"data: [DONE]\n\n"
    except Exception as error:
        yield _event(failed(error).body)


def _usage(service: Service, view: View, ended: list[Completion]) -> Json:
    return usage(view.requests, ended, [service.costs(completion.stats) for completion in ended])


def _event(data: Json) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, allow_nan=False).encode() + b"\n\n"
