"""Errors as OpenAI's clients read them: a status, and {"error": {message, type, param, code}}."""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from winnow.errors import CapacityError, ModelError, PlanError, WinnowError, out_of_memory

log = logging.getLogger("winnow.server")
LONGEST = 1000  # characters of a message
RETRY_S = 1
_PATH = re.compile(r"(?<![\w./~])~?/(?:[^\s/'\":;,()]+/)+[^\s/'\":;,()]*")
_NAMED = re.compile(r"([a-z][a-z_]*)(?:=|: | )")
KINDS = {401: "authentication_error", 404: "not_found_error", 408: "timeout_error", 429: "rate_limit_error"}
CODES = {404: "not_found", 405: "method_not_allowed", 408: "timeout", 413: "body_too_large"}


class ApiError(Exception):
    """An answer that is an error. code: OpenAI's word where it has one."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        kind = KINDS.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": clean(str(self)), "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, self.headers)


def clean(message: str) -> str:
    """One line of bounded length, without paths of this machine, that any encoding can carry."""
    line = _PATH.sub("(a path)", " ".join(message.split()))
    line = line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
    return line.encode("utf-8", "backslashreplace").decode()


def refused(
    error: WinnowError, fields: Sequence[str] = (), *, param: str | None = None, code: str | None = None
) -> ApiError:
    """What a client asked for that cannot be. fields: of its request; the one that the message begins with is named."""
    said = str(error)
    if "response_format" in fields:  # which a schema comes in here
        said = re.sub(r"^json_schema\b", "response_format", said)
    if (named := _NAMED.match(said)) is not None and named[1] in fields:
        param = named[1]
    if isinstance(error, PlanError | ModelError) and param is None:  # parts of the model that the plan needs
        param = "plan"
    if code is None and isinstance(error, CapacityError):
        code = "context_length_exceeded"
    return ApiError(400, said, param=param, code=code)


def failed(error: BaseException) -> ApiError:
    """What went wrong in an answer that had begun; the log has all of it."""
    if isinstance(error, ApiError):
        return error
    log.error("an answer ended with an error", exc_info=error)
    if isinstance(error, WinnowError):
        return ApiError(500, str(error), code="failed")
    if out_of_memory(error):
        return ApiError(
            503,
            "there was not enough memory for this step; send a shorter prompt, or fewer requests at once",
            code="out_of_memory",
            headers={"Retry-After": str(RETRY_S)},
        )
    return ApiError(500, "an internal error ended this answer", code="internal_error")


def unanswerable(request: Request, error: HTTPException) -> ApiError:
    """What the framework refused before anybody looked at it."""
    if error.status_code == 404:
        return no_such_path(request)
    message = "the body cannot be read as JSON" if error.status_code == 400 else str(error.detail)
    if error.status_code == 405:
        message = f"{_place_of(request)} takes no {request.method}; /openapi.json says what each path takes"
    return ApiError(error.status_code, message, code=CODES.get(error.status_code), headers=error.headers)


def no_such_path(request: Request) -> ApiError:
    """A client has the wrong address, or wants a part of OpenAI's API that is not here."""
    message = f"there is no {_place_of(request)} here; v1/completions and v1/chat/completions are, and what"
    return ApiError(404, f"{message} /openapi.json names", code=CODES[404])


def _place_of(request: Request) -> str:
    """A request's path without its first slash, with which it could be one of this machine: messages name none."""
    return request.url.path.lstrip("/") or "/"


def invalid(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """What pydantic found wrong with a body: the first field, and all that is said of it."""
    if isinstance(errors[0].get("input"), bytes):
        return ApiError(400, "a body is JSON, and said to be so: Content-Type: application/json", code="invalid_value")
    where = _place(errors[0])
    said = dict.fromkeys(_said(each) for each in errors if _place(each) == where)
    text = " or ".join(list(said)[:3])
    return ApiError(400, f"{where}: {text}" if where else text, param=where or None, code="invalid_value")


def _place(error: Mapping[str, Any]) -> str:
    """ "messages.0.content" of where an error is; kinds that a union has tried or is told apart by are left out."""
    if error["type"] == "json_invalid":
        return ""
    parts: list[str] = []
    _, *where = error["loc"]
    if where[:1] == ["response_format"]:
        del where[1:2]
    for part in where:
        if isinstance(part, str) and (part in ("str", "int", "float", "bool") or "[" in part):
            break
        parts.append(str(part))
    if error["type"] == "field":
        parts.append(error["ctx"]["field"])
    return clean(".".join(parts))


def _said(error: Mapping[str, Any]) -> str:
    if error["type"] == "json_invalid":
        return f"the body is no JSON ({error['ctx']['error']}, at character {error['loc'][-1]})"
    return str(error["msg"]).removeprefix("Value error, ")
