"""An answer as the inspector shows it: its request once more, looked at while the engine runs it."""

import uuid
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, Response

from winnow.engine.request import Request
from winnow.inspector.page import render
from winnow.inspector.recorder import Follower
from winnow.server.deadline import Deadline
from winnow.server.errors import ApiError
from winnow.server.events import LEFT, unless_gone
from winnow.server.fields import Asking
from winnow.server.service import Service


async def traced(
    service: Service, body: Asking, requests: Sequence[Request], http: HttpRequest, deadline: Deadline
) -> Response:
    """A page that needs nothing else. Raises ApiError where there is more than one answer, or as an answer would."""
    if len(requests) * requests[0].params.n != 1:
        raise ApiError(400, "a trace is of one answer; ask for one prompt and n=1", param="n")
    if body.stream:
        raise ApiError(400, "a trace comes as a whole; leave stream out", param="stream")
    # Computed from its start, or there would be nothing to see of what is gone on from.
    follower = Follower(service.llm, replace(requests[0], salt=uuid.uuid4().hex))
    done = await unless_gone(http.receive, _followed(service, body, follower, deadline))
    return LEFT if done is None else HTMLResponse(await service.aside(render, follower.trace()))


async def _followed(service: Service, body: Asking, follower: Follower, deadline: Deadline) -> bool:
    with service.begin([follower.request], list(type(body).model_fields)) as answers:
        async with aclosing(service.outputs(answers, deadline)) as outputs:
            async for _ in outputs:
                pass
    return True
