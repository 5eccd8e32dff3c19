"""`winnow serve`: load a model, or start replicas that do, and answer until told to end."""

import asyncio
import os
import pickle
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from winnow.cli.commands.serve import Serve
from winnow.cli.inputs import parse_plan
from winnow.cli.terminal import say
from winnow.errors import MissingExtraError

if TYPE_CHECKING:
    import socket

    from winnow.server.service import Service

NEEDED = ("fastapi", "httpx2", "uvicorn", "prometheus_client")
REPLICA = ("-P", "-m", "winnow.cli.serve_replica")  # -P: it imports nothing from the folder it runs in


def serve(options: Serve) -> int:
    """Answer requests; returns the exit code."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise MissingExtraError(f"winnow serve needs {', '.join(missing)}; install winnow with its extra 'serve'")
    from winnow.server.app import new_app
    from winnow.server.run import bound, serve

    plans = tuple(str(parse_plan(plan)) for plan in options.settings.allow_plans)  # of which some may be in files
    settings = replace(options.settings, allow_plans=plans)
    options = replace(options, settings=settings)
    place = bound(settings.host, settings.port)  # before the model is loaded, which may take a while
    if options.replicas > 1:
        return asyncio.run(_serve_several(options, place))
    service = load_service(options)
    return serve(new_app(service), service, place, lambda: _say_where(options, place, service.name, str(service.plan)))


def load_service(options: Serve, *, fronted: bool = False) -> "Service":
    """The model as a service. Raises what loading it raises."""
    from winnow.server.primitives import keep_few_primitives

    keep_few_primitives()
    from winnow.server.service import Service

    plan = None if options.plan is None else parse_plan(options.plan)
    llm = options.load(plan=plan, deterministic=options.deterministic)
    name = options.settings.served_model_name or Path(options.model_name).absolute().name
    return Service(llm, options.settings, name, fronted=fronted)


async def _serve_several(options: Serve, place: "socket.socket") -> int:
    """Answer with processes that each hold the model. Raises InputError where they cannot."""
    from winnow.server.front import Front, new_front_app
    from winnow.server.run import Draining, config_of
    from winnow.server.workers import Workers, new_token

    token = new_token()
    async with Workers(REPLICA, pickle.dumps(_of_replica(options, token)), token, options.replicas) as workers:
        front, about = Front(workers, options.settings), workers.about
        server = Draining(
            config_of(new_front_app(front)), front, lambda: _say_where(options, place, about["name"], about["plan"])
        )
        await server.serve(sockets=[place])
        return server.code


def _of_replica(options: Serve, token: str) -> Serve:
    """What a replica is told: to answer its front alone, which is where clients are let in and allowed time to end."""
    settings = options.settings.fronted(host="127.0.0.1", port=0, api_key=(token,), drain_s=0.0)
    threads = options.threads or max(1, _cores() // options.replicas)
    return replace(options, settings=settings, threads=threads, replicas=1)


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _say_where(options: Serve, place: "socket.socket", name: str, plan: str) -> None:
    from winnow.server.doors import is_here
    from winnow.server.run import address

    settings, url = options.settings, address(place)
    if not settings.api_key and not is_here(settings.host):
        say(f"note: whoever reaches {settings.host} may ask; set WINNOW_API_KEY to let in only who knows it")
    several = f" in {options.replicas} replicas" if options.replicas > 1 else ""
    say(f"{name} under {plan}{several} at {url}/v1; a page at {url}/; Ctrl-C ends, answers under way first")
