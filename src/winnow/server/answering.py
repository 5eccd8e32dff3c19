"""From requests to a response: all at once, or as events; whoever leaves takes nothing with them."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from winnow.engine.background import Answers
from winnow.engine.request import Completion, Output
from winnow.server.deadline import Deadline
from winnow.server.errors import failed
from winnow.server.events import DONE, LEFT, STREAM, event, unless_gone
from winnow.server.fields import Asking, StreamOptions
from winnow.server.going_on import Trace
from winnow.server.prompts import asks_for_nothing_new
from winnow.server.service import Service
from winnow.server.usage import usage
from winnow.server.views import Json, View


async def respond(
    service: Service, body: Asking, view: View, http: HttpRequest, deadline: Deadline, *, lines_up: bool = True
) -> Response:
    """Begin the requests of a view, and answer. Raises ApiError where they cannot begin, or have failed."""
    answers = service.begin(view.requests, list(type(body).model_fields), lines_up=lines_up)
    outputs = service.outputs(answers, deadline)
    if asks_for_nothing_new(body):
        outputs = _untold(outputs)
    if body.stream:
        told = Told(service, view, body.stream_options or StreamOptions())
        return EventStream(_events(service, outputs, view, told), answers)
    whole = await unless_gone(http.receive, _whole(service, answers, outputs, view))
    return LEFT if whole is None else JSONResponse(whole)


async def _untold(outputs: AsyncGenerator[Output, None]) -> AsyncGenerator[Output, None]:
    """The same, but for new tokens."""
    nothing: dict[str, Any] = {"token_ids": [], "text": "", "logprobs": []}
    async with aclosing(outputs):
        async for output in outputs:
            ended = output.completion
            if ended is not None:
                reason = "length" if ended.finish_reason == "stop" else ended.finish_reason
                ended = replace(ended, **nothing, finish_reason=reason)
            yield replace(output, **nothing, completion=ended)


class EventStream(StreamingResponse):
    """Events, each sent as soon as it is there; `answers` are closed after the last, or when the client has left."""

    media_type = STREAM

    def __init__(self, events: AsyncIterator[bytes], answers: Answers) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._answers:
            await unless_gone(receive, self.stream_response(send))


async def _whole(service: Service, answers: Answers, outputs: AsyncGenerator[Output, None], view: View) -> Json:
    with answers:
        async with aclosing(outputs):
            found = [output.completion async for output in outputs if output.completion is not None]
    ended = sorted(found, key=lambda each: (each.prompt_index, each.sample_index))
    return view.whole(ended, usage(view.requests, ended, [service.costs(each.stats) for each in ended]))


class Told:
    """The costs of a stream, as its client wants to be told them: after each chunk, at the end, or not at all."""

    def __init__(self, service: Service, view: View, options: StreamOptions) -> None:
        self._service, self._view, self._options = service, view, options
        self._so_far: dict[tuple[int, int], Completion] = {}
        self._costs: dict[tuple[int, int], dict[str, int]] = {}

    def note(self, output: Output) -> None:
        """What a step brought."""
        place = (output.prompt_index, output.sample_index)
        if output.completion is not None:
            self._so_far[place] = output.completion
        elif self._options.continuous_usage_stats and output.stats is not None:
            found = self._so_far.setdefault(place, Completion("", [], None, output.stats, *place))
            found.token_ids += output.token_ids
            found.stats = output.stats  # another one where the answer has begun anew
        else:
            return
        self._costs[place] = self._service.costs(self._so_far[place].stats)

    def beside(self) -> Json:
        """What stands in a chunk besides, until the end."""
        if self._options.continuous_usage_stats and self._so_far:
            return {"usage": self._usage()}
        return {"usage": None} if self._options.include_usage else {}

    def last(self) -> Json | None:
        """The chunk after all others; None: there is none."""
        if not self._options.include_usage:
            return None
        return {**self._view.frame(self._view.chunk_kind, []), "usage": self._usage()}

    def _usage(self) -> Json:
        return usage(self._view.requests, list(self._so_far.values()), list(self._costs.values()))


async def _events(
    service: Service, outputs: AsyncGenerator[Output, None], view: View, told: Told
) -> AsyncIterator[bytes]:
    """Chunks, and the end of the stream; of one that failed, the error and no end."""
    trace = Trace() if service.fronted else None
    try:
        for chunk in view.opening():
            yield event({**chunk, **told.beside()})
        async with aclosing(outputs):
            async for output in outputs:
                told.note(output)
                made = view.chunk(output)
                if trace is not None:
                    trace.note(output, made)
                if made is not None:
                    yield event({**made, **told.beside()})
        if (last := told.last()) is not None:
            yield event(last)
        yield DONE
    except Exception as error:
        yield event(failed(error).body)
