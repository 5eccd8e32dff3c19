"""The Python that processes of tests are forked from outlives everyone who asks it for one."""

import json
import os
import shlex
import socket
import time
from pathlib import Path

import pytest

import forked

LEAN = "import json"  # what this server's forks have imported: these tests need none of Winnow


@pytest.fixture(scope="module")
def program():
    return forked.python(LEAN)


def asked(program):
    """A connection, and a request for a process that ends at once."""
    place = shlex.split(Path(program).read_text().splitlines()[1])[-2]
    client = socket.socket(socket.AF_UNIX)
    client.connect(place)
    told = {"arguments": ["-c", "pass"], "folder": os.getcwd(), "environment": dict(os.environ), "files": [0, 1, 2],
            "limits": [], "interrupted": True, "blocked": []}  # fmt: skip
    return client, json.dumps(told).encode()


def cut(client, sent):
    """Leave after having sent so much, with a file of one's own, as three of a process."""
    with client, open(os.devnull, "r+b") as nothing:
        if sent:
            socket.send_fds(client, [sent[:4]], [nothing.fileno()] * 3)
            client.sendall(sent[4:])


@pytest.mark.parametrize("share", [0, 4, 40, None])
def test_who_leaves_while_asking(program, share):
    """Nothing, the length alone, a part, or all of a request was sent; the next one is served all the same."""
    client, request = asked(program)
    cut(client, (len(request).to_bytes(4, "big") + request)[:share])
    assert forked.run([["-c", "print(5)"]], program)[0].out == "5\n"


def test_who_leaves_as_the_process_ends(program):
    """Whichever the server hears of first: it used to tell the code to someone who was gone, and died of that."""
    for _ in range(40):
        client, request = asked(program)
        cut(client, len(request).to_bytes(4, "big") + request)
    ended = forked.run([["-c", f"raise SystemExit({code})"] for code in (0, 3)], program)
    assert [each.code for each in ended] == [0, 3]


def test_who_is_killed_takes_the_process_along(program):
    process = forked.start(["-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)"], program)
    number = int(process.stdout.readline())
    process.kill()
    process.communicate()
    assert forked.run([["-c", "print(5)"]], program)[0].out == "5\n"
    for _ in range(1000):
        if not Path(f"/proc/{number}").exists():
            return
        time.sleep(0.01)
    pytest.fail(f"process {number} is still there")
