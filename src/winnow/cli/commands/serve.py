"""`winnow serve`: a model behind OpenAI's API."""

from dataclasses import dataclass, field
from typing import Annotated

from cyclopts import Group, Parameter

from winnow.cli.command import Command
from winnow.cli.options import MODEL, AdapterOptions, AtLeast1, check_plans
from winnow.server.settings import Settings

SERVER = Group("Server", sort_key=1)


@dataclass(frozen=True, kw_only=True)
class ServerSettings(Settings):
    """Settings as they are typed."""

    # As it stands: a blank one is refused, and not taken for none; one with spaces is not several.
    api_key: Annotated[
        tuple[str, ...], Parameter(env_var="WINNOW_API_KEY", env_var_split=lambda _, value, **__: [value])
    ] = ()
    """What clients have to send as bearer token; repeatable; better in the environment as WINNOW_API_KEY."""
    allow_plans: Annotated[tuple[str, ...], Parameter(validator=check_plans)] = ()
    """A plan that requests may ask for, besides the server's own; repeatable. Default: any that loads no files and
    takes no more of the machine than is counted: not mapped, prompt_compression and random_heads."""


@dataclass(frozen=True, kw_only=True)
class Serve(AdapterOptions, Command, runs="winnow.cli.serve:serve"):
    """Answer OpenAI's API over HTTP, many requests together, each under a plan. Ctrl-C lets answers finish."""

    model: Annotated[str | None, Parameter(alias="-m", group=MODEL)] = field(default=None, kw_only=False)
    """A .gguf file, a directory, a hub id, "smollm2" (the default where installed), or "needle" (a bundled toy)."""
    plan: Annotated[str | None, Parameter(alias="-p", validator=check_plans)] = None
    """Of requests that name none. Default: full, or what the model or adapter was trained for."""
    replicas: Annotated[AtLeast1, Parameter(group=SERVER)] = 1
    """Processes that answer, each with the model, its limits, and its share of the threads unless --threads says."""
    deterministic: Annotated[bool, Parameter(group=SERVER)] = False
    """The same bits whatever else is under way, and in every replica; weights are then read for every answer."""
    settings: Annotated[ServerSettings, Parameter(name="*", group=SERVER)] = field(default_factory=ServerSettings)
