"""What a request passes before it is looked at: is the server still open, who asks, how large is the body."""

import asyncio
import hmac
from collections.abc import Sequence
from hashlib import sha256
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from winnow.server.errors import RETRY_S, ApiError, failed
from winnow.server.settings import Settings

OPEN = ("/", "/health")  # paths that need no key: the page holds nothing, and sends the key that it is given
PAUSE_S = 60  # the longest that a body may pause before it is whole, as other servers have it
WATCHED = ("/health", "/metrics")  # what operators look at, above all where a server has as much as it can take


class Door:
    """Counts requests that are inside, `most` at once; once `closed`, it lets none in."""

    def __init__(self, most: int) -> None:
        self.most, self.inside, self.closed = most, 0, False

    def refusal(self, path: str) -> ApiError | None:
        """Why a request cannot come in, if it cannot."""
        if self.closed:
            message = "this server takes no more requests; it ends when those under way are done"
            return ApiError(503, message, code="shutting_down", headers={"Retry-After": "5"})
        if self.inside >= self.most and path not in WATCHED:
            message = f"{self.inside} connections are open already; come back in a moment"
            return ApiError(503, message, code="overloaded", headers={"Retry-After": str(RETRY_S)})
        return None


def add_doors(app: Starlette, settings: Settings, door: Door, *, fronted: bool = False) -> None:
    """Put the doors before an application. fronted: a front asks, which waits for its own clients."""
    app.add_middleware(Bounded, most=settings.max_body_bytes, patient=fronted)
    if settings.api_key:
        app.add_middleware(Keyed, keys=settings.api_key)
    elif is_here(settings.host) and not fronted:
        app.add_middleware(Local, allowed=settings.allow_origin)
    app.add_middleware(Counted, door=door)
    if settings.allow_origin:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.allow_origin, allow_methods=["*"], allow_headers=["*"]
        )


class Counted:
    """Keeps count at the door; what nobody has caught becomes an error that says nothing of the inside."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app, self._door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if (refusal := self._door.refusal(scope["path"])) is not None:
            return await refusal.response()(scope, receive, send)
        begun = False
        scope.setdefault("state", {})["arrived"] = asyncio.get_running_loop().time()

        async def sent(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        self._door.inside += 1
        try:
            await self._app(scope, receive, sent)
        except Exception as error:
            answer = failed(error).response()
            if begun:
                raise
            await answer(scope, receive, send)
        finally:
            self._door.inside -= 1


class Keyed:
    """Lets in who has one of the keys."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN and not self._knows(scope):
            message = "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'"
            refused = ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
            return await refused.response()(scope, receive, send)
        await self._app(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        digest = sha256(given.strip().encode()).digest()
        found = [hmac.compare_digest(digest, key) for key in self._digests]  # all of them, whichever is right
        return scheme.lower() == "bearer" and any(found)


class Local:
    """Lets in no web page but this machine's own and the allowed ones, on an address that only this machine reaches:
    the name of any other page may have come to stand for that address since the page was opened (DNS rebinding)."""

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self._app, self._allowed = app, allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (origin := Headers(scope=scope).get("origin")) and not self._knows(origin):
            message = "pages of this origin are not answered; --allow-origin names those that are"
            return await ApiError(403, message, code="origin_not_allowed").response()(scope, receive, send)
        await self._app(scope, receive, send)

    def _knows(self, origin: str) -> bool:
        try:
            host = urlsplit(origin).hostname or ""
        except ValueError:
            return False
        return bool({origin, "*"} & set(self._allowed)) or is_here(host)


def is_here(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Unread(Exception):
    """A client takes nothing of its answer any more."""


class Bounded:
    """Reads no more of a body than `most` bytes, and waits no longer than PAUSE_S for more of it, nor for a client to
    take a part of its answer: else those that do not read would stay inside for ever. patient: it waits."""

    def __init__(self, app: ASGIApp, most: int, patient: bool) -> None:
        self._app, self._most, self._patient = app, most, patient

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        said = Headers(scope=scope).get("content-length", "")
        if said.isdigit() and (len(said) > 18 or int(said) > self._most):
            return await too_large(self._most).response()(scope, receive, send)
        read, whole, pause_s = 0, False, None if self._patient else PAUSE_S

        async def bounded() -> Message:
            nonlocal read, whole
            try:
                message = await asyncio.wait_for(receive(), None if whole else pause_s)
            except TimeoutError:
                raise HTTPException(408, f"nothing more of the body came in {pause_s} s; send it again") from None
            whole = not message.get("more_body", False)
            read += len(message.get("body", b""))
            if read > self._most:
                raise HTTPException(413, str(too_large(self._most)))
            return message

        async def read_on(message: Message) -> None:
            try:
                async with asyncio.timeout(pause_s):
                    await send(message)
            except TimeoutError:
                raise Unread from None

        try:
            await self._app(scope, bounded, read_on)
        except Unread:  # the server closes a connection whose answer is not whole
            return


def too_large(most: int) -> ApiError:
    return ApiError(413, f"the body is larger than this server's {most:,} bytes; send less", code="body_too_large")
