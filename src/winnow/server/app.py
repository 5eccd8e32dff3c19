"""The application: OpenAI's paths, what operators look at, and a page to try it on."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from winnow import __version__
from winnow.engine.request import Request as Asked
from winnow.server.answering import respond
from winnow.server.deadline import Deadline
from winnow.server.doors import add_doors
from winnow.server.errors import ApiError, invalid, unanswerable
from winnow.server.events import GO_ON, LEFT, STREAM, unless_gone
from winnow.server.fields import ChatBody, ChatOn, CompletionBody, CompletionOn, DetokenizeBody, Failure, TokenizeBody
from winnow.server.going_on import going_on
from winnow.server.page import page
from winnow.server.prompts import chat_requests, completion_requests, detokenized, echoes, tokens_of
from winnow.server.service import Service
from winnow.server.spelling import Spelling
from winnow.server.tracing import traced
from winnow.server.views import ChatView, CompletionView

FAILURES: dict[int | str, dict[str, Any]] = {"default": {"model": Failure, "description": "An error"}}
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {STREAM: {}}}}  # as well as JSON
# What choices of a stream that goes on have come to; its client lines up nowhere.
Given = Sequence[Sequence[int]] | None
TRACE = "/trace"  # before a path: the same request, and its answer in the inspector
PAGE: dict[int | str, dict[str, Any]] = {200: {"content": {"text/html": {}}}}
PLAIN: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}


def new_app(service: Service) -> FastAPI:
    """The application over a service. Raises InputError where its model has no tokenizer."""
    app = FastAPI(title="Winnow", version=__version__, docs_url=None, redoc_url=None, responses=FAILURES)
    _add_completions(app, service)
    _add_models(app, service)
    _add_tokens(app, service)
    _add_state(app, service)
    _add_page(app)
    _add_errors(app)
    add_doors(app, service.settings, service.door, fronted=service.fronted)
    return app


def _add_completions(app: FastAPI, service: Service) -> None:
    spelling = Spelling(service.tokenizer)

    async def completion_of(body: CompletionBody, *, lines_up: bool = True) -> list[Asked]:
        service.named(body.model)
        service.check_queue(len(body.prompt), lines_up=lines_up)  # who has to come back costs little, however many do
        return await service.aside(completion_requests, service, body)

    async def chat_of(body: ChatBody, *, lines_up: bool = True) -> list[Asked]:
        service.named(body.model)
        service.check_queue(1, lines_up=lines_up)
        return await service.aside(chat_requests, service, body)

    async def of_who_waits(
        asked: Coroutine[Any, Any, list[Asked]], http: Request, deadline: Deadline, given: Given = None
    ) -> list[Asked] | None:
        """The requests, gone on with; None: the client has left."""
        found = await unless_gone(http.receive, deadline.keep(asked))
        return None if found is None else going_on(found, given or (), service.llm.decoder.shape.vocab)

    async def complete(body: CompletionBody, http: Request, given: Given = None) -> Response:
        deadline, lines_up = service.deadline(http), given is None
        requests = await of_who_waits(completion_of(body, lines_up=lines_up), http, deadline, given)
        if requests is None:
            return LEFT
        echoed = await deadline.keep(service.aside(echoes, service, body))
        view = CompletionView(service.name, spelling, requests, body.logprobs, echoed=echoed)
        return await respond(service, body, view, http, deadline, lines_up=lines_up)

    async def talk(body: ChatBody, http: Request, given: Given = None) -> Response:
        deadline, lines_up = service.deadline(http), given is None
        requests = await of_who_waits(chat_of(body, lines_up=lines_up), http, deadline, given)
        if requests is None:
            return LEFT
        view = ChatView(service.name, spelling, requests, (body.top_logprobs or 0) if body.logprobs else None)
        return await respond(service, body, view, http, deadline, lines_up=lines_up)

    @app.post("/v1/completions", responses=STREAMED)
    async def completions(body: CompletionBody, http: Request) -> Response:
        return await complete(body, http)

    @app.post("/v1/chat/completions", responses=STREAMED)
    async def chat(body: ChatBody, http: Request) -> Response:
        return await talk(body, http)

    @app.post(TRACE + "/v1/completions", response_class=Response, responses=PAGE)
    async def completions_traced(body: CompletionBody, http: Request) -> Response:
        deadline = service.deadline(http)
        requests = await of_who_waits(completion_of(body), http, deadline)
        return LEFT if requests is None else await traced(service, body, requests, http, deadline)

    @app.post(TRACE + "/v1/chat/completions", response_class=Response, responses=PAGE)
    async def chat_traced(body: ChatBody, http: Request) -> Response:
        deadline = service.deadline(http)
        requests = await of_who_waits(chat_of(body), http, deadline)
        return LEFT if requests is None else await traced(service, body, requests, http, deadline)

    if service.fronted:

        @app.post(GO_ON + "/v1/completions", include_in_schema=False)
        async def completions_on(body: CompletionOn, http: Request) -> Response:
            return await complete(body.asked, http, body.given)

        @app.post(GO_ON + "/v1/chat/completions", include_in_schema=False)
        async def chat_on(body: ChatOn, http: Request) -> Response:
            return await talk(body.asked, http, body.given)


def _add_models(app: FastAPI, service: Service) -> None:
    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [service.about()]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        service.named(name)
        return service.about()


def _add_tokens(app: FastAPI, service: Service) -> None:
    @app.post("/tokenize")
    async def tokenize(body: TokenizeBody, http: Request) -> dict[str, Any]:
        service.named(body.model)
        tokens = await service.deadline(http).keep(service.aside(tokens_of, service, body))
        return {"tokens": tokens, "count": len(tokens), "max_model_len": service.llm.decoder.shape.max_positions}

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeBody, http: Request) -> dict[str, str]:
        service.named(body.model)
        return {"prompt": await service.deadline(http).keep(service.aside(detokenized, service, body))}

    @app.get("/tokenizer_info")
    async def tokenizer_info() -> dict[str, Any]:
        names = ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template")
        found = {name: getattr(service.tokenizer, name, None) for name in names}
        return {"tokenizer_class": type(service.tokenizer).__name__, **found}


def _add_state(app: FastAPI, service: Service) -> None:
    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics", response_class=Response, responses=PLAIN)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_page(app: FastAPI) -> None:
    shown = page()

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return shown


def _add_errors(app: FastAPI) -> None:
    """Every error has OpenAI's body."""

    async def said(request: Request, error: ApiError) -> Response:
        return error.response()

    async def not_valid(request: Request, error: RequestValidationError) -> Response:
        return invalid(error.errors()).response()

    async def by_framework(request: Request, error: HTTPException) -> Response:
        return unanswerable(request, error).response()

    handlers: dict[type[Exception], Callable[[Request, Any], Awaitable[Response]]] = {
        ApiError: said,
        RequestValidationError: not_valid,
        HTTPException: by_framework,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)
