"""Requests to an application of this process, as replicas of Ray pass them on."""

import asyncio
import json
from contextlib import aclosing

from http_calls import ask, quiet
from winnow.server.in_process import replied
from winnow.server.replicas import Asked, Head

BODY = {"prompt": "ab", "max_tokens": 6, "ignore_eos": True, "temperature": 0}


def asked(method, path, body=None):
    data = b"" if body is None else json.dumps(body).encode()
    return Asked(method, path, {"content-type": "application/json"}, data, None)


def test_a_reply_is_that_of_http(app):
    async def reply(*given):
        async with aclosing(replied(app, asked(*given))) as parts:
            found = [part async for part in parts]
        assert [isinstance(part, Head) for part in found] == [True] + [False] * (len(found) - 1)
        return found[0].status, b"".join(found[1:])

    expected = ask(app, "/v1/completions", BODY).json["choices"]
    status, body = asyncio.run(reply("POST", "/v1/completions", BODY))
    assert (status, json.loads(body)["choices"]) == (200, expected)
    status, body = asyncio.run(reply("POST", "/v1/completions", {**BODY, "stream": True}))
    assert (status, body.endswith(b"data: [DONE]\n\n"), body.count(b"data: ") > 2) == (200, True, True)
    assert asyncio.run(reply("GET", "/v1/models/%74iny?a=b"))[0] == 200
    assert asyncio.run(reply("GET", "/nosuch"))[0] == 404


def test_who_closes_has_left(new):
    service, app = new()

    async def leave():
        long = {**BODY, "max_tokens": 20_000, "stream": True}
        async with aclosing(replied(app, asked("POST", "/v1/completions", long))) as parts:
            assert (await anext(parts)).status == 200
            await anext(parts)
            assert service.engine.running == 1

    asyncio.run(asyncio.wait_for(leave(), 10))
    assert quiet(service)
    assert service.door.inside == 0
