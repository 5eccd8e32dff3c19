"""`load`: a server under load, one that is started or any with OpenAI's API."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from winnow.cli.command import Command
from winnow.cli.main import new_app
from winnow.cli.options import MODEL, AtLeast1, OutOptions, PlansOptions, Seed, Share

app = new_app("load", "Ask a server much at once, and see what clients get and wait for.")
SERVER = Group("Server", sort_key=1)
AtLeast0 = Annotated[int, Parameter(validator=Number(gte=0))]
Tokens = Annotated[tuple[AtLeast1, AtLeast1], Parameter(help="Prompt tokens, the least and the most.")]


@dataclass(frozen=True, kw_only=True)
class Served(PlansOptions, OutOptions):
    """Which server, and what all requests have."""

    model: Annotated[str | None, Parameter(alias="-m", group=MODEL)] = None
    """A .gguf file, a directory, a hub id, "smollm2" (the default where installed), or "needle". With --url: what the
    server calls it, where requests have to say."""
    serve: Annotated[str, Parameter(group=SERVER, allow_leading_hyphen=True)] = ""
    """What `winnow serve` is told besides, such as "--deterministic --max-sequences 32"."""
    url: Annotated[str | None, Parameter(group=SERVER)] = None
    """A server that runs already, such as http://127.0.0.1:8080; no plan is sent unless --plan says one. What it keeps
    of prompts makes it answer the same ones faster the second time."""
    pid: Annotated[AtLeast1 | None, Parameter(group=SERVER)] = None
    """Its process, whose memory is looked at, with those below it."""
    fields: Annotated[str | None, Parameter(group=SERVER)] = None
    """JSON that every request has besides. Default: {"ignore_eos": true}; with --url: {}."""
    seed: Seed = 0
    """Of prompts and of what is drawn; the same seed asks the same."""


@dataclass(frozen=True, kw_only=True)
class Streams(Served, Command, runs="benchmarks.load.command:streams"):
    """Streams of short prompts and of long ones, all at once, then one by one: is any lost or another's answer?

    Half are greedy, half are drawn by a seed; plans take turns. Without --plan: full attention and plans of every kind.
    """

    streams: AtLeast0 = 500
    """Of short prompts."""
    short: Tokens = (16, 64)
    long: AtLeast0 = 32
    """Streams of long prompts."""
    length: Annotated[Tokens, Parameter(alias="-l")] = (2000, 6000)
    new: AtLeast1 = 32
    """Tokens of an answer, at most."""
    rate: Annotated[float | None, Parameter(validator=Number(gt=0))] = None
    """Requests a second, at random times. Default: all at once."""
    alone: AtLeast0 | None = None
    """How many are asked again, one by one. Default: all."""
    patience_s: Annotated[float | None, Parameter(validator=Number(gt=0))] = None
    """Seconds after which a client goes away; its request is lost. Default: none does."""


@dataclass(frozen=True, kw_only=True)
class Arriving(Served, Command, runs="benchmarks.load.command:arriving"):
    """Gaps that the clients of running streams see, before a long prompt comes, and until its first token.

    Without --plan: full attention.
    """

    length: Annotated[AtLeast1, Parameter(alias="-l")] = 7000
    """Tokens of the prompt that comes, or nearly."""
    streams: AtLeast1 = 4
    """How many run."""
    before: AtLeast1 = 64
    """Gaps of each before the prompt comes."""
    new: AtLeast1 = 4096
    """Tokens of a stream, at most: enough to outlast the prompt."""
    repeats: AtLeast1 = 3


@dataclass(frozen=True, kw_only=True)
class Memory(Served, Command, runs="benchmarks.load.command:memory"):
    """Resident memory of a server after many requests of mixed plans, some of which their client leaves.

    Without --plan: full attention and plans of every kind.
    """

    serve: Annotated[str, Parameter(group=SERVER, allow_leading_hyphen=True)] = "--retain-mib 0"
    """What `winnow serve` is told besides: what it retains is memory, too."""
    requests: AtLeast1 = 2000
    """After those of the warm-up."""
    aborts: Share = 0.3
    """Of them that their client leaves before the end."""
    warmup: AtLeast1 = 200
    """Requests before the first look at memory."""
    every: AtLeast1 = 200
    """Requests between two looks."""
    together: AtLeast1 = 4
    """How many are asked at once."""
    length: Annotated[Tokens, Parameter(alias="-l")] = (16, 1024)
    new: AtLeast1 = 16
    """Tokens of an answer, at most."""


app.command(Streams, name="streams")
app.command(Arriving, name="arriving")
app.command(Memory, name="memory")
