"""What a front lets through, and what it makes of replicas that end, break and cannot be started; in this process."""

import asyncio
import errno
from contextlib import asynccontextmanager

import httpx2
import pytest

from http_calls import call
from winnow.errors import InputError
from winnow.server import workers as workers_module
from winnow.server.errors import ApiError
from winnow.server.front import Front, new_front_app
from winnow.server.going_on import going_on
from winnow.server.replicas import Asked
from winnow.server.settings import Settings
from winnow.server.workers import Worker, Workers

FINE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"
ENDING = b'{"error": {"message": "it ends", "code": "shutting_down"}}'
CLOSED = b"HTTP/1.1 503 no\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(ENDING), ENDING)


class Process:
    returncode = None
    killed = False

    def kill(self):
        self.killed = True


@asynccontextmanager
async def answering(*replies, **settings):
    """A front of workers that each say the same to everybody, None: nothing; and the requests that they have had."""
    had, servers = [], []
    workers = Workers((), b"", "token", len(replies))

    def server(reply):
        async def said(reader, writer):
            had.append((await reader.readuntil(b"\r\n\r\n")).decode())
            if reply is not None:
                writer.write(reply)
                writer.close()

        return asyncio.start_server(said, "127.0.0.1", 0)

    for number, reply in enumerate(replies):
        servers.append(await server(reply))
        port = servers[-1].sockets[0].getsockname()[1]
        workers._ready[number] = Worker(number, Process(), {"port": port})
    workers._any.set()
    yield new_front_app(Front(workers, Settings(**settings))), workers, had
    for each in servers:
        each.close()
    await workers._client.aclose()


EVENTS = b'data: {"id": "a", "created": 1, "choices": []}\n\ndata: [DONE]\n\n'
BROKEN = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 1000\r\n\r\n" + EVENTS
PATHS = ["%2F@127.0.0.1:1/latest", "@127.0.0.1:1/", "/x/../go_on/v1/completions", "/./go_on/v1/completions",
         "/%2e/go_on/v1/completions", "/go_on/v1/completions", "/%67o_on/v1/completions", "http://a/"]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leads_to_another_host_or_to_the_fronts_own_way(path):
    async def asked():
        async with answering(FINE) as (app, workers, had):
            reply = await call(odd(app, path), "POST", "/", {})
            return reply, workers.ready, had

    reply, ready, had = asyncio.run(asked())
    assert (reply.status, reply.json["error"]["code"], ready, had) == (404, "not_found", 1, [])


def odd(app, path):
    """The application, asked as by a request line with this target."""

    async def asked(scope, receive, send):
        await app({**scope, "raw_path": path.encode()}, receive, send)

    return asked


def test_the_urls_host_is_no_part_of_the_path():
    worker = Worker(0, Process(), {"port": 7})
    for path in ("@b/c", "%2F@b:1/c", "//b/c?d=e"):
        try:
            assert workers_module._url(worker, path).netloc == b"127.0.0.1:7"
        except httpx2.InvalidURL:
            assert not path.startswith("/")


@pytest.mark.parametrize("token", [-1, 10, 10**9])
def test_tokens_that_a_model_lacks_are_refused(token):
    with pytest.raises(ApiError, match=f"no token {token}"):
        going_on([], [[3, token]], 10)


def test_a_worker_that_ends_in_order_is_asked_no_more():
    async def asked():
        async with answering(CLOSED, FINE) as (app, workers, had):
            replies = [await call(app, "GET", "/v1/models") for _ in range(3)]
            return [each.status for each in replies], list(workers._ready), len(had)

    assert asyncio.run(asked()) == ([200] * 3, [1], 4)


def test_an_error_of_the_fronts_own_ends_no_worker(monkeypatch):
    async def asked():
        async with answering(FINE, FINE) as (app, workers, _):

            async def full(*given, **named):
                raise OSError(errno.EMFILE, "Too many open files")

            with monkeypatch.context() as patch:
                patch.setattr(asyncio.get_running_loop(), "create_connection", full)
                patch.setattr(workers_module, "STILL_S", 0.0)
                reply = await call(app, "GET", "/v1/models")
                await asyncio.sleep(0.01)
            return reply, workers.ready, [each.process.killed for each in workers.workers]

    reply, ready, killed = asyncio.run(asked())
    assert (reply.status, reply.json["error"]["code"], ready, killed) == (503, "overloaded", 2, [False, False])


@pytest.mark.parametrize("said", ["no JSON", "x" * 100_000])
def test_a_first_line_that_cannot_be_read_is_an_error(said):
    async def begun():
        async with asyncio.timeout(20), Workers(("-c", f"print({said!r})"), b"", "token", 1):
            raise AssertionError

    with pytest.raises(InputError, match="a replica"):
        asyncio.run(begun())


def test_a_worker_that_cannot_be_started_again_is_tried_again_and_again(monkeypatch, caplog):
    async def kept():
        monkeypatch.setattr(workers_module, "PAUSE_S", 0.01)
        command = ("-c", "import sys; print('{\"port\": 1}', flush=True); sys.stdin.read()")
        async with asyncio.timeout(20), Workers(command, b"", "token", 1) as workers:
            start, tries = workers._start, []

            async def failing(number):
                tries.append(number)
                if len(tries) < 3:
                    raise OSError("no memory")
                return await start(number)

            monkeypatch.setattr(workers, "_start", failing)
            first = workers.workers[0].process
            first.kill()
            while workers.ready == 0 or workers.workers[0].process is first:
                await asyncio.sleep(0.01)
            return len(tries)

    assert asyncio.run(kept()) == 3
    assert "replica 0 could not be started: no memory" in caplog.text


def test_a_stream_that_has_ended_is_not_gone_on_with():
    async def asked():
        async with answering(BROKEN, FINE) as (app, _, had):
            return await call(app, "POST", "/v1/completions", {}), len(had)

    reply, times = asyncio.run(asked())
    assert (reply.body, reply.ended, times) == (EVENTS, True, 1)


def test_a_replica_is_told_the_host_and_headers_as_they_came():
    async def asked():
        async with answering(FINE) as (app, _, had):
            raw = [("accept", "é"), ("host", "there:1")]
            reply = await call(app, "GET", "/v1/models/", headers=raw)
            return reply.status, had[0].lower()

    status, had = asyncio.run(asked())
    assert status == 200
    assert "host: there:1\r\n" in had


def test_what_the_framework_refuses_is_openais_error():
    async def asked():
        async with answering(FINE) as (app, _, _):
            return await call(app, "TRACE", "/v1/models")

    reply = asyncio.run(asked())
    assert (reply.status, reply.json["error"]["code"]) == (405, "method_not_allowed")


def test_who_waits_for_a_replica_is_told_of_the_end():
    async def asked():
        async with answering() as (_, workers, _):
            workers._any.clear()
            waiting = asyncio.create_task(workers._chosen(None))
            await asyncio.sleep(0)
            workers.end()
            await asyncio.wait_for(waiting, 5)

    with pytest.raises(ApiError, match="the server ended"):
        asyncio.run(asked())


@pytest.mark.parametrize("stream", [False, True])
def test_the_time_that_an_answer_may_take_begins_once(stream):
    """The replica goes away in the middle; the other one says nothing, and would have all the time anew."""
    begun = EVENTS.replace(b"data: [DONE]\n\n", b"")
    head = b"content-type: text/event-stream\r\n" if stream else b""
    broken = b"HTTP/1.1 200 OK\r\n" + head + b"content-length: 1000\r\n\r\n" + (begun if stream else b"{")

    async def asked():
        async with answering(broken, None, timeout_s=0.3) as (app, workers, had):
            async with asyncio.timeout(20):
                reply = await call(app, "POST", "/v1/completions", {"prompt": "ab"})
            inside = [each.inside for each in workers.workers]
            return reply, len(had), inside

    reply, asked_times, inside = asyncio.run(asked())
    assert (asked_times, inside) == (2, [0])
    error = (reply.events[-1] if stream else reply.json)["error"]
    assert (reply.status, error["code"], error["type"]) == (200 if stream else 408, "timeout", "timeout_error")
    assert (reply.ended, reply.done) == (True, False)
    if stream:
        assert reply.body.startswith(begun)


def test_no_more_than_so_many_are_let_in_at_once():
    async def asked():
        async with answering(None, max_connections=2) as (app, workers, _):
            gone = asyncio.Event()
            inside = [asyncio.create_task(call(app, "GET", "/v1/models", gone=gone)) for _ in range(2)]
            async with asyncio.timeout(20):
                while workers.workers[0].inside < 2:
                    await asyncio.sleep(0.01)
                refused = await call(app, "GET", "/v1/models")
                seen = await call(app, "GET", "/health")
                gone.set()
                await asyncio.gather(*inside)
            return refused, seen.status

    refused, health = asyncio.run(asked())
    assert (refused.status, refused.json["error"]["code"], refused.headers["retry-after"]) == (503, "overloaded", "1")
    assert health == 200


@pytest.mark.parametrize("name", ["accept", "content-type", "host"])
def test_a_blank_behind_a_header_is_passed_on_without(name):
    async def asked():
        async with answering(FINE) as (app, workers, had):
            reply = await call(app, "GET", "/v1/models", headers=[(name, "a/b \t")])
            return reply.status, workers.ready, had[0].lower()

    status, ready, had = asyncio.run(asked())
    assert (status, ready) == (200, 1)
    assert f"\r\n{name}: a/b\r\n" in had


def test_a_request_that_cannot_be_passed_on_ends_no_worker(monkeypatch):
    monkeypatch.setattr(workers_module, "STILL_S", 0.0)

    async def asked(headers, path):
        async with answering(FINE) as (_, workers, had):
            with pytest.raises(ApiError, match=r"passed on|path") as refused:
                await anext(workers.ask(Asked("GET", path, headers, b"", None)))
            await asyncio.sleep(0.01)
            return refused.value.status, workers.ready, workers.workers[0].process.killed, had

    paths = ("/a\x7fb", "/a#b", "/é", "/" + "a" * 70_000)
    for headers, path in (({"accept": "a\0b"}, "/"), *(({}, path) for path in paths)):
        assert asyncio.run(asked(headers, path)) == (400, 1, False, []), path[:9]
