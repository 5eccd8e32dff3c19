"""`winnow serve`: load a model, and answer until told to end."""

import ipaddress
from importlib.util import find_spec
from pathlib import Path

from winnow.cli.commands.serve import Serve
from winnow.cli.inputs import parse_plan
from winnow.cli.terminal import say
from winnow.errors import MissingExtraError

NEEDED = ("fastapi", "uvicorn", "prometheus_client")


def serve(options: Serve) -> int:
    """Answer requests; returns the exit code."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise MissingExtraError(f"winnow serve needs {', '.join(missing)}; install winnow with its extra 'serve'")
    from winnow.server.run import address, bound, serve
    from winnow.server.service import Service

    settings = options.settings
    plan = None if options.plan is None else parse_plan(options.plan)
    place = bound(settings.host, settings.port)  # before the model is loaded, which may take a while
    llm = options.load(plan=plan)
    service = Service(llm, settings, settings.served_model_name or Path(options.model_name).name)
    if not settings.api_key and not _is_here(settings.host):
        say(f"note: whoever reaches {settings.host} may ask; set WINNOW_API_KEY to let in only who knows it")
    url = address(place)
    ready = f"{service.name} under {service.plan} at {url}/v1; a page at {url}/; Ctrl-C ends when all are answered"
    return serve(service, place, lambda: say(ready))


def _is_here(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
