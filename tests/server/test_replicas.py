"""Several replicas behind one front: streams outlive the process that they come from, and end as if it had stayed."""

import asyncio
import http.client
import json
import os
import pickle
import signal
import subprocess
import sys
import urllib.request
from contextlib import asynccontextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

import forked
from command_line import tiny
from http_calls import call
from winnow.cli import serve
from winnow.cli.commands.serve import Serve, ServerSettings
from winnow.errors import InputError
from winnow.server import attempt
from winnow.server.front import Front, new_front_app
from winnow.server.workers import Workers

__all__ = ["tiny"]
CHAT = {"messages": [{"role": "user", "content": "Where does the ferry go to?"}], "max_tokens": 70, "temperature": 0,
        "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip
SEEDED = {"prompt": "The ferry leaves at nine. " * 4, "max_tokens": 60, "temperature": 1.1, "seed": 7, "n": 2,
          "ignore_eos": True, "stream": True, "logprobs": 1, "echo": True}  # fmt: skip
PLANS = [
    "full",
    "snapkv(budget=24, window=8)",
    "lazyllm",
    "slowfast(budget=16, recent=8)",
    "streaming(sink=2, recent=9)",
]
BODIES = [
    *(("/v1/chat/completions", {**CHAT, "plan": plan}) for plan in PLANS),
    *(("/v1/completions", {**SEEDED, "plan": plan}) for plan in (PLANS[0], PLANS[3], PLANS[4])),
    ("/v1/completions", {**SEEDED, "stream": False, "n": 1, "max_tokens": 150}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def forks(monkeypatch):
    monkeypatch.setattr(sys, "executable", forked.python())


@asynccontextmanager
async def several(model, count=2, **settings):
    """The application of a front, and its processes."""
    settings = ServerSettings(api_key=("secret",), **settings)
    options = Serve(str(model), settings=settings, deterministic=True, threads=1, prefill_chunk=16)
    told = pickle.dumps(serve._of_replica(options, "token"))
    async with Workers(serve.REPLICA, told, "token", count) as workers:
        front = Front(workers, settings)
        yield new_front_app(front), workers, front


async def post(app, path, body, **others):
    return await asyncio.wait_for(
        call(app, "POST", path, body, headers=[("Authorization", "Bearer secret")], **others), 60
    )


async def get(app, path):
    return await asyncio.wait_for(call(app, "GET", path, headers=[("Authorization", "Bearer secret")]), 30)


async def until(holds, seconds=30.0):
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.01)


def plain(reply):
    """What was said, without what no two answers have in common; of a stream, by choice: these may alternate."""
    assert (reply.status, reply.ended) == (200, True), reply.body
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return {**reply.json, "id": 0, "created": 0}
    assert reply.done, reply.body[-300:]
    assert len({(each["id"], each["created"]) for each in reply.events}) == 1
    found = {}
    for each in reply.events:
        assert all("token_ids" not in choice for choice in each["choices"])
        index = each["choices"][0]["index"] if each["choices"] else None
        found.setdefault(index, []).append((each["choices"], each.get("usage")))
    return found


def test_streams_outlive_the_replicas_that_they_come_from(tiny):
    async def killed():
        async with several(tiny, max_sequences=32) as (app, workers, _):
            expected = [plain(await post(app, *each)) for each in BODIES]
            begun = [asyncio.Event() for _ in BODIES]

            def follow(index, path, body):
                def seen(reply):
                    if reply.body.count(b"data: ") > 2 + 2 * index:
                        begun[index].set()
                    return False

                if not body["stream"]:
                    begun[index].set()
                return asyncio.create_task(post(app, path, body, leave=seen))

            tasks = [follow(index, *each) for index, each in enumerate(BODIES)]
            await until(lambda: sum(each.inside for each in workers.workers) == len(BODIES))
            spread = {each.inside for each in workers.workers}
            await asyncio.gather(*(each.wait() for each in begun))
            # On a busy machine some have ended before others have begun.
            dying = max(workers.workers, key=lambda each: each.inside)
            under_way = spread, dying.inside
            os.kill(dying.about["pid"], signal.SIGKILL)
            found = [plain(each) for each in await asyncio.gather(*tasks)]
            await until(lambda: workers.ready == 2)
            metrics = (await get(app, "/metrics")).body.decode()
            return expected, found, metrics, *under_way

    expected, found, metrics, spread, lost = asyncio.run(killed())
    assert spread == {4, 5}
    assert lost > 0
    for (_, body), one, other in zip(BODIES, expected, found, strict=True):
        assert one == other, body["plan"]
    shown = {sample.name: sample for family in text_string_to_metric_families(metrics) for sample in family.samples}
    assert shown["winnow:answers_gone_on_with_total"].value == lost
    assert shown["winnow:replicas_ready"].value == 2
    assert shown["winnow:generation_tokens_total"].labels["replica"] in ("0", "1")


def test_sessions_stay_and_the_others_go_where_least_is_done(tiny):
    async def asked():
        async with several(tiny) as (app, workers, _):
            short = {"prompt": "ab", "max_tokens": 2}
            chosen = {}
            for session in map(str, range(12)):
                found = [await workers._chosen(session) for _ in range(2)]
                assert found[0] is found[1]
                chosen.setdefault(found[0].number, []).append(session)
            assert set(chosen) == {0, 1}
            replies = await asyncio.gather(*(post(app, "/v1/completions", short) for _ in range(8)))
            assert [each.status for each in replies] == [200] * 8
            gone, stays = chosen[0][0], chosen[1][0]
            os.kill(next(each.about["pid"] for each in workers.workers if each.number == 0), signal.SIGKILL)
            await until(lambda: workers.ready == 1)
            assert {(await workers._chosen(each)).number for each in (gone, stays)} == {1}
            await until(lambda: workers.ready == 2)
            assert (await workers._chosen(gone)).number == 0

    asyncio.run(asked())


def test_what_clients_get_is_what_one_server_says(tiny):
    async def asked():
        async with several(tiny, count=1, max_body_mib=0.01) as (app, workers, front):
            refused = await post(app, "/v1/completions", {"prompt": "ab", "nosuch": 1})
            assert (refused.status, refused.json["error"]["param"]) == (400, "nosuch")
            assert (await post(app, "/v1/completions", None, raw=b"{")).json["error"]["code"] == "invalid_value"
            assert (await post(app, "/v1/completions", {"prompt": "a" * 20_000})).status == 413
            assert (await call(app, "GET", "/v1/models")).status == 401
            assert (await get(app, "/v1/models")).json["data"][0]["id"] == tiny.name
            assert (await get(app, "/nosuch")).json["error"]["code"] == "not_found"
            page = await call(app, "GET", "/")
            assert page.headers["content-security-policy"].startswith("default-src 'none'")
            for path in ("/go_on/v1/completions", "/%67o_on/v1/completions"):
                given = {"asked": {"prompt": "ab"}, "given": [[5]]}
                assert (await post(app, path, given)).json["error"]["code"] == "not_found"
            assert (await get(app, "/health")).json == {"status": "ok", "replicas": 1}
            long = {"prompt": "ab", "max_tokens": 20_000, "ignore_eos": True, "stream": True}
            await post(app, "/v1/completions", long, leave=lambda reply: b"data:" in reply.body)
            [worker] = workers.workers
            assert (worker.inside, front.door.inside) == (0, 0)

    asyncio.run(asked())


def test_the_end_of_a_front_is_an_error_to_those_who_are_left(tiny):
    async def asked():
        async with several(tiny) as (app, workers, front):
            long = {"prompt": "ab", "max_tokens": 20_000, "ignore_eos": True}
            streamed = asyncio.create_task(post(app, "/v1/completions", {**long, "stream": True}))
            whole = asyncio.create_task(post(app, "/v1/completions", long))
            await until(lambda: [each.inside for each in workers.workers] == [1, 1])
            await asyncio.sleep(0.5)
            front.end()
            return await asyncio.gather(streamed, whole)

    streamed, whole = asyncio.run(asked())
    assert not streamed.done
    assert streamed.events[-1]["error"]["code"] == whole.json["error"]["code"] == "shutting_down"


def test_a_request_that_ends_every_replica_is_given_up(tiny, monkeypatch):
    async def asked():
        async with several(tiny) as (app, workers, _):
            ask = workers.ask

            async def deadly(asked):
                chosen = await workers._chosen(None)
                if b'"stream": false' in asked.body:
                    os.kill(chosen.about["pid"], signal.SIGKILL)
                async for part in ask(asked):
                    yield part
                    if isinstance(part, bytes):
                        os.kill(chosen.about["pid"], signal.SIGKILL)

            monkeypatch.setattr(workers, "ask", deadly)
            monkeypatch.setattr(attempt, "MOST_LOST", 1)
            body = {"prompt": "ab", "max_tokens": 20_000, "ignore_eos": True}
            return [await post(app, "/v1/completions", {**body, "stream": stream}) for stream in (False, True)]

    whole, streamed = asyncio.run(asked())
    assert (whole.status, whole.json["error"]["code"]) == (500, "replica_lost")
    assert (streamed.done, streamed.events[-1]["error"]["code"]) == (False, "replica_lost")


def test_replicas_that_cannot_begin(tmp_path):
    async def begun():
        async with several(tmp_path / "nosuch"):
            raise AssertionError

    with pytest.raises(InputError, match="nosuch"):
        asyncio.run(begun())


def test_a_replica_imports_nothing_from_the_folder_that_it_is_started_in(tmp_path, monkeypatch):
    monkeypatch.undo()  # a new Python, not a fork
    (tmp_path / "pickle.py").write_text("raise SystemExit(3)", encoding="utf-8")
    options = serve._of_replica(Serve(str(tmp_path / "nosuch"), threads=1), "token")
    command, pipe = [sys.executable, *serve.REPLICA], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=tmp_path) as process:
        process.stdin.write(pickle.dumps(options))
        process.stdin.flush()  # and left open: a replica ends with it
        said = process.stdout.readline()
        assert process.wait(60) == 2
    assert "nosuch" in json.loads(said)["error"]


def test_the_command_with_replicas(tiny):
    """Says where it is, answers, finishes what is under way after SIGTERM, and ends with 0."""
    process = forked.start(["-m", "winnow", "serve", tiny, "--port", 0, "--replicas", 2])
    said = forked.first_line(process)
    assert " under full in 2 replicas at http://127.0.0.1:" in said, said
    url = said.split(" at ")[1].split(";")[0]
    body = json.dumps({"prompt": "ab", "max_tokens": 400, "ignore_eos": True, "stream": True}).encode()
    request = urllib.request.Request(f"{url}/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        assert reply.readline().startswith(b"data: ")
        os.kill(process.pid, signal.SIGTERM)
        assert reply.read().endswith(b"data: [DONE]\n\n")
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")


def test_one_process_that_is_killed_says_no_success(tiny):
    process = forked.start(["-m", "winnow", "serve", tiny, "--port", 0, "--threads", 1])
    url = forked.first_line(process).split(" at ")[1].split(";")[0]
    body = json.dumps({"prompt": "ab", "max_tokens": 20_000, "ignore_eos": True, "stream": True}).encode()
    request = urllib.request.Request(f"{url}/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        said = reply.readline()
        process.kill()
        with pytest.raises((OSError, http.client.IncompleteRead)):
            said += reply.read()
    assert said.startswith(b"data: ")
    assert b"[DONE]" not in said
    process.communicate(timeout=30)
