"""What a server is told when it starts, checked; it loads nothing heavy."""

from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, Any, Self

from annotated_types import Interval

from winnow.errors import InputError
from winnow.parameters import Count, Natural, wrong_type

Positive = Annotated[float, Interval(gt=0, lt=inf)]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a server listens, whom it answers and how much it takes on.

    Raises InputError naming the setting that is out of range.
    """

    host: str = "127.0.0.1"
    """The address to listen on; other machines reach 0.0.0.0."""
    port: Annotated[int, Interval(ge=0, le=65535)] = 8000
    """0: any that is free."""
    api_key: tuple[str, ...] = ()
    """What clients have to send as bearer token; repeatable."""
    allow_origin: tuple[str, ...] = ()
    """A web page's origin whose scripts may ask, such as http://localhost:3000, or *; repeatable."""
    served_model_name: str | None = None
    """What clients call the model. Default: the last part of MODEL."""
    allow_plans: tuple[str, ...] = ()
    """A plan that requests may ask for, besides the server's own; repeatable. Default: any that loads no files and
    takes no more of the machine than is counted: not mapped, prompt_compression and random_heads."""
    max_cache_mib: Positive | None = None
    """Of all requests under way; a request begins when the most that it can come to hold fits. Default: no limit."""
    retain_mib: Annotated[float, Interval(ge=0, le=2**30)] = 1024.0
    """Of ended sequences, which the next turn of a chat goes on from; inside --max-cache-mib. 0: none is retained."""
    max_step_tokens: Count | None = None
    """Rows of one step, of prompts and answers. Default: the model's --prefill-chunk."""
    max_step_ms: Annotated[float, Interval(ge=0)] | None = None
    """What a step may take, as far as fewer prompt tokens can bring it about; 0: as long as it takes. Default: twice
    what it takes without prompt tokens, as the server sees it while it runs."""
    max_sequences: Count = 8
    """Answers continued together."""
    max_queue: Count = 128
    """Requests that may wait to begin; more are told to come back."""
    default_max_tokens: Count = 512
    """Of a request that does not say; fewer where the model has no positions for so many."""
    max_trace_tokens: Natural = 256
    """New tokens of an answer that is traced, one at a time: no other limit has what is recorded of it. 0: none is."""
    max_connections: Count = 1024
    """Connections with a request on them, one that waits or is still being sent too; more are told to come back."""
    max_body_mib: Positive = 16.0
    """Of a request."""
    timeout_s: Positive | None = None
    """From the arrival of a request to the end of its answer. Default: no limit."""
    drain_s: Annotated[float, Interval(ge=0)] = 30.0
    """What answers under way are given to finish when the server is told to end."""

    def __post_init__(self) -> None:
        if problem := wrong_type(self):
            raise InputError(problem)
        if not all(key.strip() for key in self.api_key):
            raise InputError("api_key is empty; leave it out to let everyone in")
        if any(key != key.strip() for key in self.api_key):
            raise InputError("api_key begins or ends with a blank, which no header carries; leave it out")
        if not all(key.isascii() and key.isprintable() for key in self.api_key):
            raise InputError("api_key holds a character that no header can carry; use printable ASCII")
        if self.served_model_name == "":
            raise InputError("served_model_name is empty; leave it out for the model's own")

    def fronted(self, **others: Any) -> Self:
        """Of who answers a front alone, which lets clients in and bounds what they send and how many there are: what
        goes on is longer than what the client sent, and what has gone may be inside for a moment longer."""
        told: dict[str, Any] = {"api_key": (), "allow_origin": (), "max_body_mib": 2.0**30, "max_connections": 2**30}
        return replace(self, **{**told, **others})

    @property
    def max_cache_bytes(self) -> int | None:
        return None if self.max_cache_mib is None else max(1, int(self.max_cache_mib * 2**20))

    @property
    def max_step_s(self) -> float | None:
        """None: there is no such limit, or it follows from what steps take."""
        return self.max_step_ms / 1000 if self.max_step_ms else None

    @property
    def retain_bytes(self) -> int:
        return int(self.retain_mib * 2**20)

    @property
    def max_body_bytes(self) -> int:
        return max(1, int(self.max_body_mib * 2**20))
