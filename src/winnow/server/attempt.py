"""A client's request, and the replica that answers it: another one, where that goes away."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable

from winnow.server.errors import RETRY_S, ApiError
from winnow.server.replicas import Asked, Head, Lost, Replicas

log = logging.getLogger("winnow.server")
MOST_LOST = 3  # replicas that one request may lose: it may be what ends them


class Attempt:
    """Asks until a reply has begun. lost: told of every replica that has gone. Raises ApiError where too many have."""

    def __init__(self, replicas: Replicas, lost: Callable[[], object]) -> None:
        self._replicas, self._told, self._lost = replicas, lost, 0
        self._reply: AsyncGenerator[Head | bytes, None] | None = None

    async def begin(self, asked: Asked) -> Head:
        """The head of a reply; `parts` are its body."""
        while True:
            await self.close()
            self._reply = self._replicas.ask(asked)
            try:
                head = await anext(self._reply)
            except Lost:
                self.lose()
            else:
                assert isinstance(head, Head)
                return head

    async def go_on(self, asked: Asked) -> None:
        """Begin the rest of a stream, for which a full queue is no end. Raises ApiError where it is refused."""
        while (status := await self._status(asked)) == 429:
            await asyncio.sleep(RETRY_S)
        if status != 200:
            raise ApiError(503, "the replica that answered has gone, and no other could go on", code="replica_lost")

    async def _status(self, asked: Asked) -> int:
        """Of a reply that begins, or of why none does: the queue may be that of replicas, or the one before them."""
        try:
            return (await self.begin(asked)).status
        except ApiError as error:
            if error.status != 429:
                raise
            return error.status

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes. Raises Lost."""
        assert self._reply is not None
        async for part in self._reply:
            assert isinstance(part, bytes)
            yield part

    def lose(self) -> None:
        """Count a replica that has gone."""
        self._told()
        self._lost += 1
        log.warning("a replica has gone with an answer under way, which goes on elsewhere")
        if self._lost > MOST_LOST:
            message = f"{self._lost} replicas have gone while they answered this request; send another one"
            raise ApiError(500, message, code="replica_lost", headers={"x-should-retry": "false"})

    async def close(self) -> None:
        """Ask no more; the replica gives the bytes of its answer back."""
        if self._reply is not None:
            await self._reply.aclose()
