"""From requests to a response: all at once, or as events; whoever leaves takes nothing with them."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from winnow.engine.background import Answers
from winnow.engine.request import Completion
from winnow.server.deadline import Deadline
from winnow.server.errors import failed
from winnow.server.events import DONE, LEFT, STREAM, event, unless_gone
from winnow.server.fields import Asking
from winnow.server.going_on import Trace
from winnow.server.service import Service
from winnow.server.usage import usage
from winnow.server.views import Json, View


async def respond(service: Service, body: Asking, view: View, http: HttpRequest, deadline: Deadline) -> Response:
    """Begin the requests of a view, and answer. Raises ApiError where they cannot begin, or have failed."""
    answers = service.begin(view.requests, list(type(body).model_fields))
    if body.stream:
        shown = body.stream_options is not None and body.stream_options.include_usage
        return EventStream(_events(service, answers, view, shown, deadline), answers)
    whole = await unless_gone(http.receive, _whole(service, answers, view, deadline))
    return LEFT if whole is None else JSONResponse(whole)


class EventStream(StreamingResponse):
    """Events, each sent as soon as it is there; `answers` are closed after the last, or when the client has left."""

    media_type = STREAM

    def __init__(self, events: AsyncIterator[bytes], answers: Answers) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._answers:
            await unless_gone(receive, self.stream_response(send))


async def _whole(service: Service, answers: Answers, view: View, deadline: Deadline) -> Json:
    with answers:
        async with aclosing(service.outputs(answers, deadline)) as outputs:
            found = [output.completion async for output in outputs if output.completion is not None]
    ended = sorted(found, key=lambda each: (each.prompt_index, each.sample_index))
    return view.whole(ended, _usage(service, view, ended))


async def _events(
    service: Service, answers: Answers, view: View, shows_usage: bool, deadline: Deadline
) -> AsyncIterator[bytes]:
    """Chunks, and the end of the stream; of one that failed, the error and no end."""
    null: Json = {"usage": None} if shows_usage else {}
    ended: list[Completion] = []
    trace = Trace() if service.fronted else None
    try:
        for chunk in view.opening():
            yield event({**chunk, **null})
        async with aclosing(service.outputs(answers, deadline)) as outputs:
            async for output in outputs:
                if output.completion is not None:
                    ended.append(output.completion)
                made = view.chunk(output)
                if trace is not None:
                    trace.note(output, made)
                if made is not None:
                    yield event({**made, **null})
        if shows_usage:
            yield event({**view.frame(view.chunk_kind, []), "usage": _usage(service, view, ended)})
        yield DONE
    except Exception as error:
        yield event(failed(error).body)


def _usage(service: Service, view: View, ended: list[Completion]) -> Json:
    return usage(view.requests, ended, [service.costs(completion.stats) for completion in ended])
