"""Many at once, and ends of every kind: queues, limits, clients that leave, failures, the end of the server."""

import asyncio
import json
import signal
import threading
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from http_calls import ask, call, quiet
from winnow import SamplingParams
from winnow.engine.job import Job
from winnow.engine.request import Completion
from winnow.engine.sample import Sample
from winnow.errors import InputError
from winnow.server.app import new_app
from winnow.server.labelled import PREFIX
from winnow.server.metrics import COSTS, Metrics
from winnow.server.run import Draining, bound, config_of
from winnow.stats import Stats

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LONG = {"prompt": "ab", "max_tokens": 20_000, "ignore_eos": True, "temperature": 0}
SHORT = {**LONG, "max_tokens": 6}


def post(app, body, **settings):
    return asyncio.create_task(asyncio.wait_for(call(app, "POST", COMPLETIONS, body, **settings), 30))


async def until(holds, seconds=10.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        await asyncio.sleep(0.005)


def samples(app):
    """The figures of /metrics by name and labels, `winnow:` left out."""
    found = {}
    for family in text_string_to_metric_families(ask(app, "/metrics").body.decode()):
        for sample in family.samples:
            labels = ",".join(value for key, value in sample.labels.items() if key != "le")
            if "le" not in sample.labels:
                found[sample.name.removeprefix("winnow:") + (f"[{labels}]" if labels else "")] = sample.value
    return found


def test_requests_side_by_side_do_not_mix(app, llm):
    prompts = [f"prompt {number} " * (1 + number % 4) for number in range(12)]
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    plans = ["full", "streaming(sink=2, recent=9)", "snapkv(budget=12, window=4)"]
    expected = [llm.generate(prompt, params, plan=plans[i % 3])[0].text for i, prompt in enumerate(prompts)]

    async def all_of_them():
        bodies = [{**SHORT, "prompt": prompt, "plan": plans[i % 3]} for i, prompt in enumerate(prompts)]
        return await asyncio.gather(*(post(app, {**body, "stream": i % 2 == 0}) for i, body in enumerate(bodies)))

    for index, (reply, text) in enumerate(zip(asyncio.run(all_of_them()), expected, strict=True)):
        got = (
            "".join(e["choices"][0]["text"] for e in reply.events)
            if index % 2 == 0
            else reply.json["choices"][0]["text"]
        )
        assert got == text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_who_leaves_takes_nothing_with_them(new, stream, begun):
    service, app = new(max_sequences=1)

    async def leave():
        first = asyncio.Event()
        ahead = post(app, LONG, gone=first)
        await until(lambda: service.engine.running == 1)
        gone = first if begun else asyncio.Event()
        waiting = None if begun else post(app, {**LONG, "stream": stream}, gone=gone)
        if not begun:
            await until(lambda: service.engine.waiting == 1)
        gone.set()
        if waiting is not None:
            await asyncio.wait_for(waiting, 5)
            await until(lambda: service.engine.waiting == 0)
            assert service.engine.running == 1
            first.set()
        await asyncio.wait_for(ahead, 5)

    asyncio.run(leave())
    assert quiet(service)
    assert service.background._listeners == {}
    assert service.door.inside == 0


def test_a_stream_that_is_left_gives_its_bytes_back_within_a_step(new):
    service, app = new()

    async def leave():
        reply = await asyncio.wait_for(
            post(app, {**LONG, "stream": True}, leave=lambda r: r.body.count(b"data:") > 3), 10
        )
        assert (reply.status, reply.ended, reply.done) == (200, False, False)

    asyncio.run(leave())
    assert quiet(service, 1.0)


def test_a_full_queue_says_when_to_come_back(new):
    service, app = new(max_sequences=1, max_queue=1)

    async def fill():
        gone = asyncio.Event()
        tasks = [post(app, LONG, gone=gone)]
        await until(lambda: service.engine.running == 1)
        tasks.append(post(app, LONG, gone=gone))
        await until(lambda: service.engine.waiting == 1)
        refused = await post(app, SHORT)
        streamed = await post(app, {**SHORT, "stream": True})
        gone.set()
        await asyncio.gather(*tasks)
        return refused, streamed

    for reply in asyncio.run(fill()):
        assert (reply.status, reply.headers["retry-after"]) == (429, "1")
        assert (reply.json["error"]["type"], reply.json["error"]["code"]) == ("rate_limit_error", "queue_full")
    many = ask(app, COMPLETIONS, {**SHORT, "prompt": ["a", "b"]})
    assert (many.status, many.json["error"]["param"]) == (400, "prompt")
    assert quiet(service)
    assert ask(app, COMPLETIONS, SHORT).status == 200


def test_what_has_to_come_back_is_not_even_encoded(new, monkeypatch):
    service, app = new(max_sequences=1, max_queue=1)
    encoded = []
    monkeypatch.setattr("winnow.server.prompts.rendered", lambda llm, messages: encoded.append(messages))
    monkeypatch.setattr("winnow.server.prompts._encoded", lambda llm, prompt, index: encoded.append(prompt))
    monkeypatch.setattr(type(service.engine), "waiting", 1)
    talk = {"messages": [{"role": "user", "content": "a"}]}
    for path, body in ((COMPLETIONS, SHORT), (CHAT, talk)):
        assert ask(app, path, body).json["error"]["code"] == "queue_full"
    assert ask(app, COMPLETIONS, {**SHORT, "prompt": ["a", "b"]}).json["error"]["param"] == "prompt"
    assert encoded == []


def test_no_more_than_so_many_are_open_at_once(new):
    service, app = new(max_connections=2, max_queue=8)

    async def fill():
        gone = asyncio.Event()
        tasks = [post(app, LONG, gone=gone), post(app, {**LONG, "stream": True}, gone=gone)]
        await until(lambda: service.door.inside == 2)
        refused = [await post(app, SHORT), await post(app, None, raw=b"{")]
        watched = [(await call(app, "GET", path)).status for path in ("/health", "/metrics")]
        gone.set()
        await asyncio.gather(*tasks)
        return refused, watched

    refused, watched = asyncio.run(fill())
    for reply in refused:  # whose bodies have not been looked at
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert (reply.json["error"]["code"], reply.json["error"]["type"]) == ("overloaded", "server_error")
    assert watched == [200, 200]
    assert quiet(service)
    assert service.door.inside == 0
    assert ask(app, COMPLETIONS, SHORT).status == 200


def test_what_can_never_fit_is_refused_with_the_figures(new):
    service, app = new(max_cache_mib=0.01)
    for body in (LONG, {**LONG, "stream": True}, {**LONG, "prompt": ["a", "b" * 99], "max_tokens": 2}):
        reply = ask(app, COMPLETIONS, body)
        error = reply.json["error"]
        assert (reply.status, error["code"]) == (400, "cache_capacity_exceeded")
        assert "more than max_cache_bytes=10,485" in error["message"]
    assert quiet(service)
    assert ask(app, COMPLETIONS, {**LONG, "plan": "streaming(sink=2, recent=4)", "max_tokens": 50}).status == 200


def test_deadlines(new):
    service, app = new(timeout_s=0.2)
    reply = ask(app, COMPLETIONS, LONG)
    assert (reply.status, reply.json["error"]["code"]) == (408, "timeout")
    assert reply.headers["x-should-retry"] == "false"
    reply = ask(app, CHAT, {"messages": [{"role": "user", "content": "a"}], **LONG, "prompt": None, "stream": True})
    assert (reply.status, reply.done) == (200, False)
    assert reply.events[-1]["error"]["code"] == "timeout"
    assert all("error" not in event for event in reply.events[:-1])
    assert quiet(service)


FAILURES = {
    "internal_error": (RuntimeError("at /srv/secret.py: oops"), 500, "an internal error"),
    "out_of_memory": (RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried"), 503, "memory"),
    "failed": (InputError("the policy cannot go on at /a/b/c"), 500, "the policy cannot go on at (a path)"),
}


@pytest.mark.parametrize("code", FAILURES)
def test_a_sequence_that_fails_ends_with_an_error_and_the_others_go_on(new, monkeypatch, code):
    service, app = new()
    error, status, words = FAILURES[code]
    take = Sample.take

    def failing(self, logits):
        if self.request.params.seed == 13 and len(self.tokens) == 3:
            raise error
        take(self, logits)

    monkeypatch.setattr(Sample, "take", failing)
    good = {**SHORT, "max_tokens": 400}
    expected = ask(app, COMPLETIONS, good).json["choices"]

    async def together():
        bad = {**SHORT, "seed": 13}
        others = [post(app, good), post(app, good)]
        await until(lambda: service.engine.running == 2)  # where memory is short, who came last ends first
        return await asyncio.gather(post(app, bad), post(app, {**bad, "stream": True}), *others)

    whole, streamed, one, other = asyncio.run(together())
    assert (whole.status, whole.json["error"]["code"]) == (status, code)
    assert words in whole.json["error"]["message"]
    assert "secret" not in whole.json["error"]["message"]
    assert (streamed.status, streamed.done, streamed.ended) == (200, False, True)
    assert streamed.events[-1] == {"error": whole.json["error"]}
    assert all(event["choices"][0]["finish_reason"] is None for event in streamed.events[:-1])
    assert one.json["choices"] == other.json["choices"] == expected
    assert quiet(service)


def test_too_little_memory_in_a_step_ends_who_was_in_it_and_the_server_goes_on(new, monkeypatch):
    service, app = new()
    expected = ask(app, COMPLETIONS, SHORT).json["choices"]
    passed = Job.passed

    def short(self, hidden):
        raise MemoryError

    monkeypatch.setattr("winnow.engine.entry._Prompt.passed", short)
    reply = ask(app, COMPLETIONS, SHORT)
    assert (reply.status, reply.json["error"]["code"]) == (503, "out_of_memory")
    monkeypatch.setattr("winnow.engine.entry._Prompt.passed", passed)
    assert quiet(service)
    assert ask(app, COMPLETIONS, SHORT).json["choices"] == expected


def test_an_engine_that_breaks_leaves_nobody_waiting(new, monkeypatch):
    service, app = new()
    step, breaks, seen = service.engine.step, [], []
    monkeypatch.setattr(threading, "excepthook", lambda found: seen.append(str(found.exc_value)))

    def breaking():
        if breaks:
            raise ZeroDivisionError(breaks.pop())
        return step()

    monkeypatch.setattr(service.engine, "step", breaking)
    for bug, body in enumerate((LONG, {**LONG, "stream": True}), start=1):
        breaks.append(f"bug {bug}")
        reply = ask(app, COMPLETIONS, body)
        error = reply.json["error"] if reply.status == 500 else reply.events[-1]["error"]
        assert (error["code"], reply.done) == ("internal_error", False)
        asyncio.run(until(lambda bug=bug: len(seen) == bug))
    assert seen == ["bug 1", "bug 2"]
    assert ask(app, COMPLETIONS, SHORT).status == 200
    assert quiet(service)


def test_a_closed_door(new):
    service, app = new()
    service.door.closed = True
    for path in ("/health", "/v1/models", COMPLETIONS):
        reply = ask(app, path, SHORT if path == COMPLETIONS else None)
        assert (reply.status, reply.json["error"]["code"]) == (503, "shutting_down")


@pytest.mark.parametrize("drain_s", [30.0, 0.3])
def test_told_to_end_it_finishes_what_is_under_way_or_says_that_it_does_not(new, drain_s):
    """In this process, on a port of its own; the signal is given as uvicorn's handler gets it."""
    service, app = new(port=0, drain_s=drain_s)
    server = Draining(config_of(new_app(service)), service, lambda: None)
    place = bound("127.0.0.1", 0)

    async def drain():
        running = asyncio.create_task(server.serve(sockets=[place]))
        body = {**LONG, "max_tokens": 200 if drain_s > 1 else 20_000}
        tasks = [post(app, body), post(app, {**body, "stream": True})]
        await until(lambda: service.engine.running == 2)
        server.handle_exit(signal.SIGTERM, None)
        late = await post(app, SHORT)
        assert late.status == 503
        replies = await asyncio.gather(*tasks)
        await asyncio.wait_for(running, 10)
        return replies

    whole, streamed = asyncio.run(drain())
    assert server.code == 0
    if drain_s > 1:
        assert (whole.status, whole.json["usage"]["completion_tokens"], streamed.done) == (200, 200, True)
    else:
        assert (whole.status, streamed.status, streamed.done) == (503, 200, False)
        assert streamed.events[-1]["error"]["code"] == whole.json["error"]["code"] == "shutting_down"
    assert quiet(service)


@pytest.mark.parametrize("stuck", ["has not sent its body", "does not read"])
def test_told_to_end_it_waits_for_nobody_who_is_stuck(new, monkeypatch, stuck):
    monkeypatch.setattr("winnow.server.run.LATE_S", 0.2)
    service, app = new(port=0, drain_s=0.2)
    server = Draining(config_of(app), service, lambda: None)
    place = bound("127.0.0.1", 0)

    async def drain():
        running = asyncio.create_task(server.serve(sockets=[place]))
        await until(lambda: server.started)
        body = json.dumps({**LONG, "stream": True, "logprobs": 20}).encode()
        sent = body if stuck == "does not read" else body[:9]
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        _, writer = await asyncio.open_connection(*place.getsockname(), limit=1)
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + sent)
        await until(lambda: service.door.inside == 1)
        server.handle_exit(signal.SIGTERM, None)
        await asyncio.wait_for(running, 10)
        writer.close()

    asyncio.run(drain())
    assert quiet(service)


def test_a_second_signal_ends_at_once(new):
    service, _ = new()
    server = Draining(config_of(new_app(service)), service, lambda: None)
    server.handle_exit(signal.SIGTERM, None)
    assert (service.door.closed, server.should_exit) == (True, False)
    server.handle_exit(signal.SIGTERM, None)
    assert (server.should_exit, server.force_exit, server.code) == (True, True, 143)


def test_an_address_that_is_taken():
    with bound("127.0.0.1", 0) as place:
        place.listen()
        with pytest.raises(InputError, match=r"cannot listen on 127\.0\.0\.1:"):
            bound("127.0.0.1", place.getsockname()[1])
    with pytest.raises(InputError, match=r"cannot listen on no\.such\.host\.invalid:1"):
        bound("no.such.host.invalid", 1)


def test_what_was_given_up_before_it_began_has_saved_nothing():
    told = Metrics(lambda stats: dict.fromkeys(COSTS, 7))
    for stats in (Stats(prompt_tokens=100), Stats(prompt_tokens=100, rows_full=5)):
        told._end(Completion("", [], "abort", stats), first=True)
    for name, _ in COSTS.values():
        assert f"{PREFIX}{name} 7.0\n" in told.text().decode()


def test_what_metrics_count(new):
    service, app = new(max_cache_mib=64, retain_mib=0.0)
    requests, new_tokens = 4, 6
    for number in range(requests):
        ask(app, COMPLETIONS, {**SHORT, "stream": number % 2 == 0, "plan": "streaming(sink=2, recent=4)"})
    found = samples(app)
    prompt = requests * 2
    assert found["prompt_tokens_total"] == found["request_prompt_tokens_sum"] == prompt
    assert found["generation_tokens_total"] == found["request_generation_tokens_sum"] == requests * new_tokens
    assert found["iteration_tokens_total_sum"] == prompt + requests * new_tokens
    assert found["inter_token_latency_seconds_count"] == requests * (new_tokens - 1)
    assert found["request_success_total[length]"] == requests
    for name in ("time_to_first_token", "e2e_request_latency", "request_time_per_output_token"):
        assert found[f"{name}_seconds_count"] == requests
    for parts, whole in (
        (("queue", "prefill", "decode"), "e2e_request_latency"),
        (("queue", "inference"), "e2e_request_latency"),
        (("queue", "prefill"), "time_to_first_token"),
    ):
        spent = sum(found[f"request_{part}_time_seconds_sum"] for part in parts)
        assert spent == pytest.approx(found[f"{whole}_seconds_sum"])
    assert found["request_params_max_tokens_sum"] == requests * new_tokens
    assert found["request_params_n_count"] == requests
    used = ask(app, COMPLETIONS, {**SHORT, "plan": "streaming(sink=2, recent=4)"}).json["usage"]["winnow"]
    again = samples(app)
    for name, (shown, _) in COSTS.items():
        assert found[shown] == requests * used[name]
        assert again[shown] == (requests + 1) * used[name]
    gauges = ("num_requests_running", "num_requests_waiting", "cache_reserved_bytes", "kv_cache_usage_perc")
    assert [again[name] for name in gauges] == [0, 0, 0, 0]

    async def look():
        gone = asyncio.Event()
        task = post(app, LONG, gone=gone)
        await until(lambda: service.engine.running == 1)
        reserved = service.engine.reserved_bytes
        reply = await call(app, "GET", "/metrics")
        gone.set()
        await task
        return reserved, reply.body.decode()

    reserved, text = asyncio.run(look())
    assert "winnow:num_requests_running 1.0" in text
    assert f"winnow:kv_cache_usage_perc {reserved / 2**26}" in text
    assert quiet(service)
    assert samples(app)["request_success_total[abort]"] == 1
    assert service.metrics._last == {}
