"""What a front asks of those that answer for it, any of which may go away."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol


class Lost(Exception):
    """Who was asked has gone before its answer was whole."""


@dataclass(frozen=True)
class Asked:
    """A client's request. path: with its query; session: what the client calls the conversation it belongs to."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    session: str | None


@dataclass(frozen=True)
class Head:
    """How a reply begins."""

    status: int
    headers: dict[str, str]


class Replicas(Protocol):
    """Several servers of one model. ready: how many of them can be asked."""

    @property
    def ready(self) -> int: ...

    def ask(self, asked: Asked) -> AsyncGenerator[Head | bytes, None]:
        """One replica's reply: its head, then its body as it comes; to be closed.

        Requests of one session go to one replica as long as it is there. Raises Lost where the replica has gone,
        ApiError where there is none to ask.
        """
        ...

    async def metrics(self) -> dict[str, str]:
        """What each shows at /metrics, by its name."""
        ...

    def end(self) -> None:
        """End what they have under way with an error, and them."""
        ...
