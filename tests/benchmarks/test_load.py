"""`python -m benchmarks load`: what counts as lost and as another's, clients that come back, a tiny model's server."""

import asyncio
import json
import math
import sys

import pytest
from benchmarks.load.arriving import Arrived, summarise_arriving
from benchmarks.load.client import Heard, Wanted, client_of, follow
from benchmarks.load.figures import percentile, percentiles
from benchmarks.load.streams import ask_all, one_at_a_time, span, summarise_streams
from benchmarks.load.view import ARRIVING, MEMORY, STREAMS

import forked
from command_line import MADE_BY

PLANS = ("-p", "full", "-p", "streaming(sink=2, recent=20)", "-p", "snapkv(budget=24, window=8)")


@pytest.fixture
def forks(monkeypatch):
    monkeypatch.setattr(sys, "executable", forked.python())


def piece(text, finish=None, **others):
    choice = {"text": text, "index": 0, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice], **others}).encode() + b"\n\n"


def reply(status, body, *headers):
    lines = [f"HTTP/1.1 {status} said", "connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


USAGE = {"usage": {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}}
WHOLE = reply(200, piece("a") + piece("b") + piece("c", "length", **USAGE) + b"data: [DONE]\n\n")
FULL = reply(429, b'{"error": {}}', "retry-after: 0")
ENDS = {
    "whole": ([WHOLE], None),
    "full, then whole": ([FULL, FULL, WHOLE], None),
    "overloaded, then whole": ([reply(503, b"", "Retry-After: 0"), WHOLE], None),
    "no end": ([reply(200, piece("a"))], "the stream ended without finish_reason"),
    "an error": ([reply(200, piece("a") + b'data: {"error": {"message": "no"}}\n\n')], "{'message': 'no'}"),
    "refused": ([reply(400, b"bad plan")], "400: bad plan"),
    "gone": ([reply(503, b"no more")], "503: no more"),
    "cut": ([reply(200, piece("a"), "content-length: 1000")], "RemoteProtocolError"),
    "nobody": ([b""], "RemoteProtocolError"),
}


async def answered(replies, ask):
    """What `ask(url)` comes to where a server says these to its clients, in this order."""
    left = list(replies)

    async def said(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
        writer.write(left.pop(0))
        writer.close()

    async with asyncio.timeout(30), await asyncio.start_server(said, "127.0.0.1", 0) as server:
        found = await ask(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert left == []
    return found


@pytest.mark.parametrize("name", ENDS)
def test_how_a_stream_ends(name):
    replies, problem = ENDS[name]

    async def asked(url):
        async with client_of(url) as client:
            return await follow(client, Wanted(0, "short", {"prompt": "x"}))

    heard = asyncio.run(answered(replies, asked))
    assert (heard.problem, heard.complete, heard.left) == (problem, problem is None, False)
    assert heard.refused == len(replies) - 1
    if problem is None:
        assert (heard.text, heard.finish, len(heard.gaps)) == ("abc", "length", 2)
        assert (heard.prompt, heard.cached, heard.tokens) == (5, 2, 3)
        assert heard.asked_s < heard.times[0] <= heard.ended_s


@pytest.mark.parametrize("pieces", [0, 2])
def test_a_client_that_leaves(pieces):
    async def asked(url):
        async with client_of(url) as client:
            return await follow(client, Wanted(0, "short", {}), pieces)

    heard = asyncio.run(answered([WHOLE], asked))
    assert (heard.left, heard.text, heard.problem, heard.complete) == (True, "ab"[:pieces], None, False)


def test_requests_at_random_times_all_come_in_their_order(monkeypatch):
    async def followed(client, wanted, seconds):
        return Heard(wanted, 0.0)

    monkeypatch.setattr("benchmarks.load.streams.follow_for", followed)
    wanted, done = [Wanted(number, "short", {}) for number in range(20)], []
    for rate in (None, 1e6):
        heard = ask_all("http://127.0.0.1:1", wanted, rate, 3, done.append, None)
        assert [each.wanted for each in heard] == wanted
    assert done == [1] * 40


def heard_of(number, text, kind="short", **others):
    found = Heard(Wanted(number, kind, {}), 10.0, [12.0, 12.5, 14.5], text, 15.0, prompt=7 + number, finish="stop")
    for name, value in others.items():
        setattr(found, name, value)
    return found


def test_what_is_lost_the_same_and_anothers():
    alone = [heard_of(number, text) for number, text in enumerate(["zero", "one", "two", "three", "four"])]
    heard = [
        heard_of(0, "zero"),
        heard_of(1, "two"),
        heard_of(2, "too"),
        heard_of(3, "three", problem="it broke"),
        heard_of(4, "four", "long", refused=3),
        heard_of(5, "nobody asked it again", "long"),
    ]
    short, long = summarise_streams(heard, alone)
    assert (short.kind, short.requests, short.lost, short.compared, short.same, short.anothers) == (
        "short",
        4,
        1,
        3,
        1,
        1,
    )
    assert (long.kind, long.requests, long.lost, long.compared, long.same, long.anothers) == ("long", 2, 0, 1, 1, 0)
    assert (long.refused, long.prompt) == (3, (11, 12))
    assert (short.ttft_s, short.itl_s) == ((2.0,) * 3, (0.5, 2.0, 2.0))


def test_tokens_per_second_at_once_and_one_at_a_time():
    heard = [heard_of(0, "a", new=30), heard_of(1, "b", new=20, asked_s=12.0, ended_s=20.0), heard_of(2, "c")]
    assert (span(heard).tokens, span(heard).seconds, span(heard).tokens_per_s) == (53, 10.0, 5.3)
    assert (one_at_a_time(heard).tokens, one_at_a_time(heard).seconds) == (53, 5.0 + 8.0 + 5.0)


def test_percentiles_are_values_that_were_seen():
    values = list(range(100, 0, -1))
    assert percentiles(values) == (50, 90, 99)
    assert [percentile([3.0, 1.0], share) for share in (0.5, 0.51, 1.0)] == [1.0, 3.0, 3.0]
    assert percentiles([]) is None
    assert math.isnan(percentile([], 0.5))


def test_an_arrival_is_compared_with_what_was_before_it():
    one = Arrived(100, 4.0, 1.0, (0.1, 0.1, 0.2), (0.2, 0.4, 0.2), 0)
    other = Arrived(200, 6.0, 2.0, (0.1,), (0.2, 0.2), 1)
    first, _, both = summarise_arriving([one, other])
    assert (first.arrival, first.p99_before_s, first.p50_s, first.p99_s) == ("1", 0.2, 0.2, 0.4)
    assert (first.ratio, first.of_median, first.of_alone) == (2.0, 4.0, 4.0)
    assert (both.arrival, both.gaps, both.p50_s, both.of_alone, both.ended) == ("all", 5, 0.2, 3.5, 1)
    assert [row.arrival for row in summarise_arriving([one])] == ["1"]


def test_streams(bench, tiny, forks, tmp_path):
    """More than the server takes at once: they come back until they are let in, and none is lost or mixed up."""
    out = tmp_path / "streams.json"
    told = "--deterministic --prefill-chunk 16 --max-sequences 3 --max-queue 2"
    result = bench("load", "streams", "-m", tiny, "--streams", 14, "--long", 2, "--length", 100, 200, "--new", 12,
                   "--serve", told, *PLANS, "--out", out)  # fmt: skip
    assert result.code == 0, result.err
    document = json.loads(out.read_text(encoding="utf-8"))
    assert (document["command"], document["complete"], document["serve"]) == ("load streams", True, told)
    assert document.keys() >= MADE_BY
    assert document["model"] == tiny.name  # and not where it lies
    for row, count in zip(document["summary"], (14, 2), strict=True):
        assert (row["requests"], row["lost"], row["anothers"]) == (count, 0, 0)
        assert row["compared"] == row["same"] == count
    assert document["problems"] == {}
    assert sum(each["refused"] for each in document["records"]) > 0
    assert {each["plan"] for each in document["records"]} == set(PLANS[1::2])
    assert all(100 <= each["prompt"] <= 200 for each in document["records"] if each["kind"] == "long")
    assert document["together"]["tokens"] == document["one_at_a_time"]["tokens"] == 16 * 12
    assert document["one_at_a_time"]["cached"] == 0  # nothing was gone on from: it is an answer of its own
    assert len(document["resident"]) == 2
    assert all(heading.split("\n")[0] in result.out for heading in STREAMS)


def test_arriving(bench, tiny, forks):
    given = ("--length", 400, "--streams", 2, "--before", 8, "--new", 4000, "--repeats", 2)
    result = bench("load", "arriving", "-m", tiny, *given, "--json")
    assert result.code == 0, result.err
    document = result.json
    assert (document["complete"], len(document["records"]), len(document["summary"])) == (True, 2, 3)
    for each in document["records"]:
        assert each["prompt"] == 400
        assert len(each["before"]) >= 2 * 8
        assert each["meanwhile"]
        assert each["ended"] == 0
    shown = bench("load", "arriving", "-m", tiny, *given[:-1], 1)
    assert all(heading.split("\n")[0] in shown.out for heading in ARRIVING)


def test_memory(bench, tiny, forks, tmp_path):
    out = tmp_path / "memory.json"
    result = bench("load", "memory", "-m", tiny, "--requests", 25, "--every", 10, "--warmup", 5, "--length", 10, 200,
                   "--aborts", 0.5, *PLANS, "--out", out)  # fmt: skip
    assert result.code == 0, result.err
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["complete"]
    assert [look["requests"] for look in document["looks"]] == [5, 15, 25, 30]
    assert all(look["retained"] == look["reserved"] == look["running"] == 0 for look in document["looks"])
    assert set(document["ends"]) == {"left", "complete"}
    assert sum(document["ends"].values()) == 30
    first, *_, last = [look["resident"] for look in document["looks"]]
    assert document["ratio"] == last / first > 0
    assert all(heading.split("\n")[0] in result.out for heading in MEMORY)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["streams", "--streams", 0, "--long", 0], "ask nothing"),
        (["streams", "--short", 9, 8], "--short 9 8: the least comes first"),
        (["memory", "--length", 9, 8], "--length 9 8: the least comes first"),
        (["streams", "--pid", 1], "--pid is of a server that runs already"),
        (["streams", "--url", "http://127.0.0.1:1", "--serve", "--threads 1"], "with --url leave it out"),
        (["streams", "--fields", "[1]"], "has to be a JSON object"),
        (["streams", "--fields", "{"], "--fields is no JSON"),
        (["arriving", "--url", "http://127.0.0.1:1"], "does not answer as it should: ConnectError"),
        (["memory", "--url", "http://127.0.0.1:1"], "say its --pid, too"),
    ],
)
def test_what_cannot_be_asked(bench, arguments, words):
    result = bench("load", *arguments)
    assert result.code == 2
    assert words in result.err


def test_a_server_that_cannot_start(bench, tmp_path, forks):
    result = bench("load", "streams", "-m", tmp_path / "nosuch")
    assert (result.code, "winnow serve has ended: error:" in result.err) == (2, True)
