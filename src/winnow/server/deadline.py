"""How long an answer may take, from the arrival of its request on."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from winnow.server.errors import ApiError

Some = TypeVar("Some")


class Deadline:
    """Of a request. timeout_s: None: there is none; arrived: when its head was here, by the event loop's time."""

    def __init__(self, timeout_s: float | None, arrived: float) -> None:
        self._timeout_s = timeout_s
        self._at = None if timeout_s is None else arrived + timeout_s

    async def keep(self, work: Awaitable[Some]) -> Some:
        """What `work` comes to. Raises ApiError once the time is up; it is cancelled then."""
        try:
            async with asyncio.timeout_at(self._at):
                return await work
        except TimeoutError:
            message = f"the answer took longer than this server's {self._timeout_s:g} s"
            raise ApiError(408, message, code="timeout", headers={"x-should-retry": "false"}) from None
