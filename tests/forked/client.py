"""What stands for a process of the server's: it hands over all that one inherits, passes signals on, ends as it ends.

Standard library alone, and little of it: this is what a process costs.
"""

import json
import os
import resource
import signal
import socket
import sys

LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE)


def is_open(file: int) -> bool:
    try:
        os.fstat(file)
    except OSError:
        return False
    return True


place, *arguments = sys.argv[1:]
files = [file for file in map(int, os.listdir("/proc/self/fd")) if is_open(file)]
server = socket.socket(socket.AF_UNIX)
server.connect(place)
given = {
    "arguments": arguments,
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "files": files,
    "limits": [[limit, resource.getrlimit(limit)] for limit in LIMITS],
    "interrupted": signal.getsignal(signal.SIGINT) != signal.SIG_IGN,
    "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
}
request = json.dumps(given).encode()
socket.send_fds(server, [len(request).to_bytes(4, "big")], files)
server.sendall(request)
answers = server.makefile()
process = int(answers.readline())
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(process, number))
code = int(answers.readline())
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
