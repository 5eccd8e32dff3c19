"""Threads that stay together through many short pieces of work, with Numba.

A parallel loop of Numba takes longer to begin and to end than threads take to meet at a barrier, and a decode step of
a small model would have 150 of them. A team is begun once. Whoever waits long yields its core, so that on a busy
machine the thread that is waited for can have it.
"""

import platform
from typing import Any

from llvmlite import ir
from numba import njit, types

from winnow.kernels.simd.build import call, operation
from winnow.kernels.simd.kinds import I32, I64

# A team's memory, int64 on cache lines of their own: how many have come to the rendezvous, what came of it, how many
# are at the barrier, and how often all of them were.
CAME, DECIDED, WAITING, PASSED = (64 * line for line in range(4))
TEAM = 4 * 8  # how many that takes
PATIENCE = 4_000  # pauses, of some 40 ns each, before a waiting thread yields its core
ALONE = PATIENCE + 1_000  # pauses and yields before a thread at the rendezvous gives the others up

_X86 = platform.machine().lower() in ("x86_64", "amd64")
_YIELDS = platform.system() != "Windows"


@operation(types.int64, types.int64, types.int64)
def fetch_add(builder: Any, address: Any, value: Any) -> Any:
    """What was there before `value` was added, all at once."""
    return builder.atomic_rmw("add", builder.inttoptr(address, I64.as_pointer()), value, "seq_cst")


@operation(types.int64, types.int64, types.int64)
def decide(builder: Any, address: Any, value: Any) -> Any:
    """What is there after `value` was put in place of 0, by whoever came first."""
    place = builder.inttoptr(address, I64.as_pointer())
    found = builder.cmpxchg(place, I64(0), value, "seq_cst", "seq_cst")
    return builder.select(builder.extract_value(found, 1), value, builder.extract_value(found, 0))


@operation(types.int64, types.int64)
def look(builder: Any, address: Any) -> Any:
    return builder.load_atomic(builder.inttoptr(address, I64.as_pointer()), "acquire", 8)


@operation(types.void, types.int64, types.int64)
def put_down(builder: Any, address: Any, value: Any) -> None:
    builder.store_atomic(value, builder.inttoptr(address, I64.as_pointer()), "release", 8)


@operation(types.void)
def pause(builder: Any) -> None:
    """Let the other thread of this core run for a moment."""
    if _X86:
        call(builder, "llvm.x86.sse2.pause", ir.VoidType())


@operation(types.void)
def give_way(builder: Any) -> None:
    """Let another process have this core."""
    if _YIELDS:
        kind = ir.FunctionType(I32, [])
        found = builder.module.globals.get("sched_yield") or ir.Function(builder.module, kind, "sched_yield")
        builder.call(found, [])


@njit(cache=True, error_model="numpy")
def wait(waited: int) -> int:
    """Wait a little; returns how often so far."""
    if waited < PATIENCE:
        pause()
    else:
        give_way()
    return waited + 1


@njit(cache=True, error_model="numpy")
def join(team: int, thread: int, threads: int) -> int:
    """Begin together: returns how many threads do, `threads`, or 1 in the one that goes alone and 0 in the others.

    team: the address of `TEAM` zeros. Where not all come, because whoever runs them has given them fewer threads, the
    first to tire goes alone.
    """
    if fetch_add(team + CAME, 1) == threads - 1:
        decide(team + DECIDED, -1)
    waited = 0
    while look(team + DECIDED) == 0:
        waited = wait(waited)
        if waited > ALONE:
            decide(team + DECIDED, thread + 1)
    came = look(team + DECIDED)
    return threads if came == -1 else int(came == thread + 1)


@njit(cache=True, error_model="numpy")
def meet(team: int, threads: int) -> None:
    """Go on when all of the threads have come here; what each has written, all can read then."""
    if threads == 1:
        return
    passed = look(team + PASSED)
    if fetch_add(team + WAITING, 1) == threads - 1:
        put_down(team + WAITING, 0)
        put_down(team + PASSED, passed + 1)
        return
    waited = 0
    while look(team + PASSED) == passed:
        waited = wait(waited)
