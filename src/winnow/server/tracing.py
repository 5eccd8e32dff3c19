"""An answer as the inspector shows it: its request once more, looked at while the engine runs it."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, Response

from winnow.engine.request import Request
from winnow.inspector.page import render
from winnow.inspector.recorder import Follower
from winnow.server.deadline import Deadline
from winnow.server.errors import RETRY_S, ApiError
from winnow.server.events import LEFT, unless_gone
from winnow.server.fields import Asking
from winnow.server.prompts import asks_for_nothing_new
from winnow.server.service import Service


async def traced(
    service: Service, body: Asking, requests: Sequence[Request], http: HttpRequest, deadline: Deadline
) -> Response:
    """A page that needs nothing else. Raises ApiError where there is more than one answer, where it may be too
    long, and as an answer would.

    What is recorded is memory that no limit in bytes counts: of one answer at a time, of so many tokens, which is also
    how long one is that does not say.
    """
    if len(requests) * requests[0].params.n != 1:
        raise ApiError(400, "a trace is of one answer; ask for one prompt and n=1", param="n")
    if body.stream:
        raise ApiError(400, "a trace comes as a whole; leave stream out", param="stream")
    if asks_for_nothing_new(body):
        raise ApiError(400, "a trace is of an answer; ask for max_tokens of at least 1", param="max_tokens")
    most, asked = service.settings.max_trace_tokens, requests[0].params.max_tokens
    said = any(getattr(body, name, None) is not None for name in ("max_tokens", "max_completion_tokens"))
    if said and asked > most:
        raise ApiError(
            400, f"a trace is of {most} new tokens at most here, not {asked}; ask for fewer", param="max_tokens"
        )
    if service.tracing.locked():
        message = "another answer is being traced; come back in a moment"
        raise ApiError(429, message, code="queue_full", headers={"Retry-After": str(RETRY_S)})
    async with service.tracing:
        params = replace(requests[0].params, max_tokens=min(asked, most))
        follower = Follower(service.llm, replace(requests[0], params=params))
        done = await unless_gone(http.receive, _followed(service, body, follower, deadline))
        if done is None:
            return LEFT
        trace = await service.aside(follower.trace)  # with the tokenizer, which is one thread's
        return HTMLResponse(await asyncio.to_thread(render, trace))


async def _followed(service: Service, body: Asking, follower: Follower, deadline: Deadline) -> bool:
    with service.begin([follower.request], list(type(body).model_fields)) as answers:
        async with aclosing(service.outputs(answers, deadline)) as outputs:
            async for output in outputs:
                follower.follow(output)
    return True
