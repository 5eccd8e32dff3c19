"""Whatever is sent, a server says what is wrong with it and answers the next: seeded bodies, connections cut short."""

import http.client
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys

import openai
import pytest
from bodies import VALID, hostile
from recipes.screens import served

from http_calls import ask, quiet
from winnow.server.settings import Settings

FEW, ALL, TOGETHER = 400, 10_000, 100
BATCHES = [pytest.param(at, marks=() if at < FEW else pytest.mark.full) for at in range(0, ALL, TOGETHER)]
GOOD = {"prompt": "ab", "max_tokens": 3, "temperature": 0}
LIMITS = {"default_max_tokens": 4, "max_cache_mib": 2.0, "timeout_s": 2.0, "max_body_mib": 0.1, "retain_mib": 0.5}


def _schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


@pytest.mark.parametrize("first", BATCHES)
def test_no_body_breaks_it(new, first, caplog):
    """Every answer is one that OpenAI's clients can read; none speaks of the inside; bytes go back."""
    service, app = new(**LIMITS)
    expected = ask(app, "/v1/completions", GOOD).json["choices"]
    for seed in range(first, first + TOGETHER):
        path, data = hostile(seed)
        reply = ask(app, path, raw=data)
        assert reply.status in (200, 400, 404, 408, 413), (seed, reply.status, reply.body[:300])
        if reply.status != 200:
            error = reply.json["error"]
            assert set(error) == {"message", "type", "param", "code"}, seed
            assert 0 < len(error["message"]) <= 1000, seed
        elif reply.headers["content-type"].startswith("text/event-stream"):
            assert reply.done or reply.events[-1]["error"]["code"] == "timeout", seed
        assert b"Traceback" not in reply.body, seed
        assert service.engine.running == 0 or quiet(service), seed
    assert quiet(service)
    assert service.engine.retained_bytes <= 2**19
    assert ask(app, "/v1/completions", GOOD).json["choices"] == expected
    assert not [record for record in caplog.records if record.exc_info], caplog.text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({**GOOD, "\ud83d": 1}, "\\ud83d"),
        ({**GOOD, "response_format": _schema({"enum": ["x", {"a": -(2**63)}]})}, "response_format"),
        ({**GOOD, "response_format": _schema({"const": -(2**63) + 512})}, "response_format"),
        ({**GOOD, "response_format": _schema({"const": -(2.0**63)})}, "response_format"),
    ],
)
def test_what_has_broken_it_once(new, body, param):
    """A name that is no text, and numbers with which llguidance ends the process."""
    _, app = new(**LIMITS)
    reply = ask(app, "/v1/completions", body)
    assert (reply.status, reply.json["error"]["param"]) == (400, param), reply.body


def test_the_bodies_are_of_all_kinds(new):
    """Some are fine, most are not, and different things are wrong with them."""
    _, app = new(**LIMITS)
    found = [ask(app, *hostile(seed)[:1], raw=hostile(seed)[1]) for seed in range(0, 4 * TOGETHER, 4)]
    assert sum(reply.status == 200 for reply in found) > 10
    assert len({reply.json["error"]["message"] for reply in found if reply.status != 200}) > 30


def test_connections_that_are_cut(live):
    """In the middle of headers, of a body, before the answer, and in it."""
    url, service = live
    host, port = url.removeprefix("http://").split(":")
    source = random.Random(5)
    for number in range(40):
        path = source.choice(list(VALID))
        body = json.dumps(
            {**VALID[path][0], **({"max_tokens": 500, "ignore_eos": True} if "v1" in path else {})}
        ).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer secret\r\nContent-Type: application/json\r\n"
        data = head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(data[: len(data) if number % 4 == 3 else source.randrange(len(data))])
            if number % 8 == 7:
                connection.recv(64)
    assert quiet(service, 20)
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    connection.request(
        "POST", "/v1/completions", json.dumps(GOOD),
        {"Authorization": "Bearer secret", "Content-Type": "application/json"},
    )  # fmt: skip
    assert connection.getresponse().status == 200


CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.mark.parametrize(
    ("amount", "least"),
    [
        (("-n", "3", "--max-time", "20"), 1),
        pytest.param(("-n", "1200"), 5000, marks=pytest.mark.full),  # ten minutes
    ],
)
def test_what_schemathesis_makes_of_its_schema(llm, tmp_path, amount, least):
    """As many requests as it makes in a while, by all that it knows to be wrong: none is an error of the server's, and
    every answer is what the schema says. least: how many cases there have to be."""
    st = shutil.which("st", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))
    if st is None:
        pytest.skip("schemathesis is not installed (extra 'dev')")
    asked = (*amount, "-c", CHECKS, "-m", "all", "--seed", "1", "--phases", "coverage,fuzzing",
             "--generation-allow-x00", "false", "-H", "Authorization: Bearer secret")  # fmt: skip
    with served(llm, "tiny", Settings(api_key=("secret",), **LIMITS)) as (url, service):
        done = subprocess.run(
            [st, "run", f"{url}/openapi.json", *asked],
            capture_output=True,
            text=True,
            timeout=2400,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stdout[-3000:]
        made, passed = map(int, re.search(r"(\d+) generated, (\d+) passed", done.stdout).groups())
        assert made == passed >= least
        assert quiet(service, 20)
        with openai.OpenAI(base_url=f"{url}/v1", api_key="secret") as client:
            assert client.completions.create(**GOOD, model="tiny").choices
