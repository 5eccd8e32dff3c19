"""Streams of several replicas while one is killed, and while a node goes away: what each client gets, and waits for."""

import asyncio
import json
import os
import re
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.load.server import started
from benchmarks.resident import descendants

WATCHED_S = 0.1  # for which replicas are watched before the busiest is killed
UNSEEN_S = 6.0  # for which Ray counts a replica that has ended
PROMPT = "The ferry leaves at nine and returns at noon; whoever misses it has to wait. "
LOST = re.compile(r"^winnow:answers_gone_on_with_total (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Cluster:
    """Replicas that answer. ends: what can go away, by what it is called; unseen_s: how long it may stay unnoticed."""

    url: str
    ends: dict[str, Callable[[], object]]
    unseen_s: float = 0.0


@dataclass(frozen=True)
class Followed:
    """What a client got. gaps: seconds between two pieces; complete: whether the stream ended as one that succeeds."""

    text: str
    complete: bool
    gaps: list[float]


@dataclass(frozen=True)
class ReplicasRow:
    """What one event did to all streams. gone_on: that went on elsewhere; longest_s, median_s: of each stream's longest
    wait between two pieces, the largest and the median."""

    event: str
    streams: int
    complete: int
    identical: int
    gone_on: int
    longest_s: float
    median_s: float


def measure_replicas(cluster: Cluster, streams: int, new: int, plan: str) -> Iterator[ReplicasRow]:
    """The same streams undisturbed, and then once for everything that can go away, in the middle."""
    expected: list[Followed] = []
    for name, end in {"nothing": lambda: None, **cluster.ends}.items():
        _wait(cluster)
        before = _gone_on(cluster)
        found = asyncio.run(_all(cluster, streams, new, plan, end))
        expected = expected or found
        longest = [max(each.gaps, default=0.0) for each in found]
        identical = sum(one.text == other.text for one, other in zip(found, expected, strict=True))
        complete = sum(each.complete for each in found)
        gone_on = _gone_on(cluster) - before
        yield ReplicasRow(name, streams, complete, identical, gone_on, max(longest), statistics.median(longest))


async def _all(cluster: Cluster, streams: int, new: int, plan: str, end: Callable[[], object]) -> list[Followed]:
    """Half of the streams are greedy, half are drawn by a seed. Each is a session of its own, which spreads them."""
    begun = [asyncio.Event() for _ in range(streams)]
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=cluster.url, timeout=600, trust_env=False, limits=limits) as client:
        tasks = [asyncio.create_task(_follow(client, index, new, plan, event)) for index, event in enumerate(begun)]
        await asyncio.gather(*(event.wait() for event in begun))
        await asyncio.to_thread(end)
        return await asyncio.gather(*tasks)


async def _follow(client: httpx2.AsyncClient, index: int, new: int, plan: str, begun: asyncio.Event) -> Followed:
    body = {
        "prompt": PROMPT * (1 + index % 5), "max_tokens": new, "ignore_eos": True, "stream": True, "plan": plan,
        "temperature": index % 2, "seed": index,
    }  # fmt: skip
    text, complete, times = "", False, []
    try:
        session = {"x-session-id": f"stream {index}"}
        async with client.stream("POST", "/v1/completions", json=body, headers=session) as reply:
            async for line in reply.aiter_lines():
                if line == "data: [DONE]":
                    complete = True
                elif line.startswith("data: ") and (choices := json.loads(line[6:]).get("choices")):
                    text += choices[0]["text"]
                    times.append(time.perf_counter())
                    if len(times) > new // 4:
                        begun.set()
    except httpx2.TransportError:
        pass  # cut off: not complete
    finally:
        begun.set()
    return Followed(text, complete, [after - before for before, after in pairwise(times)])


def _wait(cluster: Cluster) -> None:
    """Until both replicas can be asked."""
    time.sleep(cluster.unseen_s)
    while httpx2.get(cluster.url + "/health", timeout=60, trust_env=False).json()["replicas"] < 2:
        time.sleep(0.2)


def _gone_on(cluster: Cluster) -> int:
    found = LOST.search(httpx2.get(cluster.url + "/metrics", timeout=60, trust_env=False).text)
    assert found is not None
    return int(float(found[1]))


@contextmanager
def processes(typed: list[str], count: int) -> Iterator[Cluster]:
    """`winnow serve --replicas`, given what else was typed."""
    with started([*typed, "--replicas", str(count), "--deterministic"]) as server:
        pid = server.pid
        assert pid is not None
        yield Cluster(server.url, {"a process is killed": lambda: _kill(pid, "winnow.cli.serve_replica")})


@contextmanager
def nodes(options: dict[str, Any]) -> Iterator[Cluster]:
    """Two nodes of Ray on this machine, with a replica on each."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray import cluster_utils, serve

    from winnow.server.ray import Options, app

    told = Options(min_replicas=2, max_replicas=2, **options)
    made = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": told.threads, "include_dashboard": False}
    )
    try:
        other = made.add_node(num_cpus=told.threads)
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        serve.start(http_options={"host": "127.0.0.1", "port": 8765}, proxy_location="HeadOnly")
        serve.run(app(told))
        yield Cluster("http://127.0.0.1:8765", {
            "a replica is killed": lambda: _kill(os.getpid(), "ray::ServeReplica:default:Replica"),
            "a node is removed": lambda: _lose(made, other),
        }, UNSEEN_S)  # fmt: skip
    finally:
        serve.shutdown()
        ray.shutdown()
        made.shutdown()


def _lose(made: Any, node: Any) -> None:
    """Remove a node as if its machine had lost power: what ran on it would notice only after some seconds."""
    [raylet] = node.all_processes["raylet"]
    below = descendants(raylet.process.pid)
    made.remove_node(node, allow_graceful=False)
    for pid in below:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _kill(ancestor: int, named: str) -> None:
    """Kill the busiest process of that name below this one: another may have no stream any more."""
    found = [pid for pid in descendants(ancestor) if named in _file(pid, "cmdline").replace("\0", " ")]
    if not found:
        raise LookupError(f"no process {named}")
    before = {pid: _ticks(pid) for pid in found}
    time.sleep(WATCHED_S)
    os.kill(max(found, key=lambda pid: _ticks(pid) - before[pid]), signal.SIGKILL)


def _ticks(pid: int) -> int:
    """What a process has computed so far, in the kernel's ticks (proc(5))."""
    fields = _file(pid, "stat").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _file(pid: int, name: str) -> str:
    return (Path("/proc") / str(pid) / name).read_text()
