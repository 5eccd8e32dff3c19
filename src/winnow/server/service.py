"""What all requests share: the model, its engine and the thread that steps it, the plans it takes, the doors."""

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.requests import Request as HttpRequest

from winnow.engine.background import Answers, Background
from winnow.engine.depth import measure_depth
from winnow.engine.request import Output, Request
from winnow.errors import CapacityError, InputError
from winnow.plan import Plan
from winnow.runtime.llm import LLM
from winnow.server.deadline import Deadline
from winnow.server.doors import Door
from winnow.server.errors import RETRY_S, ApiError, failed, refused
from winnow.server.line import Line
from winnow.server.metrics import Metrics
from winnow.server.settings import Settings
from winnow.server.share import Share
from winnow.server.usage import costs
from winnow.stats import Stats

Some = TypeVar("Some")


class Service:
    """A model that answers requests. name: what clients call it. fronted: whether a front asks, instead of clients.

    Raises PlanError where one of the plans that clients may ask for cannot run on the model, InputError where that has
    no tokenizer.
    """

    def __init__(self, llm: LLM, settings: Settings, name: str, *, fronted: bool = False) -> None:
        self.llm, self.settings, self.name, self.fronted = llm, settings, name, fronted
        if llm.tokenizer is None:
            raise InputError(f"{name} has no tokenizer, and clients send and read text; use a model that has one")
        self.tokenizer = llm.tokenizer
        self.created = int(time.time())
        self.plan = llm.prepare()
        self.plans = [llm.prepare(plan) for plan in settings.allow_plans]
        if not self.plans:  # clients may ask for any, and no one's answer should wait for what some of them go by
            measure_depth(llm.decoder)
        self.metrics = Metrics(self.costs)
        self.engine = llm.engine(
            max_step_tokens=settings.max_step_tokens,
            max_step_s=settings.max_step_s,
            max_cache_bytes=settings.max_cache_bytes,
            max_sequences=settings.max_sequences,
            retain_bytes=settings.retain_bytes,
            progress=self.metrics.read,
        )
        self.chunk = self.engine.max_step_tokens  # the most rows of a prompt in a step
        self._share = Share(self.engine) if settings.max_step_ms is None else None
        self._line = Line(self.engine)
        self.metrics.follow(self.engine)
        self.background = Background(self.engine, self._stepped)
        self.door = Door(settings.max_connections)
        # One thread: texts are encoded beside the loop, and never by two threads with one tokenizer.
        self._aside = ThreadPoolExecutor(1, "winnow-server")
        self.tracing = asyncio.Lock()

    def costs(self, stats: Stats) -> dict[str, int]:
        """What a sample cost, each figure beside full attention's."""
        return costs(stats, self.llm.decoder.shape, self.chunk)

    def chosen(self, text: str | None) -> Plan:
        """The plan of a request. Raises ApiError where clients may not ask for it, PlanError where it is none."""
        if text is None:
            return self.plan
        plan = Plan.parse(text)
        if plan == self.plan or plan in self.plans:
            return plan
        if self.plans:
            raise _not_allowed(f"this server takes these plans: {', '.join(self._named_plans)}")
        for policy in plan.policies.values():
            if named := [name for name in policy.loads if getattr(policy, name) is not None]:
                raise _not_allowed(
                    f"{policy.name}: {named[0]} names files of the server, which its clients may not; leave it out"
                )
            if policy.takes is not None:
                raise _not_allowed(
                    f"{policy.name} takes {policy.takes}; a server's clients may not ask for it unless it is started "
                    "with --allow-plans"
                )
        return plan

    @property
    def _named_plans(self) -> list[str]:
        return list(dict.fromkeys(map(str, [self.plan, *self.plans])))

    def about(self) -> dict[str, Any]:
        """The model as /v1/models shows it: with the plan that it has, and those that a request may ask for."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "winnow",
            "max_model_len": self.llm.decoder.shape.max_positions,
            "plan": str(self.plan),
            "plans": self._named_plans if self.plans else "any",
        }

    async def aside(self, work: Callable[..., Some], *given: Any, **named: Any) -> Some:
        """The result of what takes a while and needs no loop."""
        return await asyncio.get_running_loop().run_in_executor(self._aside, functools.partial(work, *given, **named))

    def check_queue(self, count: int, *, lines_up: bool = True) -> None:
        """Raise ApiError where so many requests cannot wait: now, or ever.

        lines_up: whether who is refused takes a place in the line; who goes on with a stream comes back at once.
        """
        most = self.settings.max_queue
        if count > most:
            raise ApiError(400, f"{count} prompts are more than may wait ({most}); send fewer", param="prompt")
        if self.engine.waiting + count > most:
            raise ApiError(
                429,
                f"{self.engine.waiting} requests wait already; come back in a moment",
                code="queue_full",
                headers={"Retry-After": str(self._line.place_s() if lines_up else RETRY_S)},
            )

    def begin(self, requests: Sequence[Request], fields: Sequence[str], *, lines_up: bool = True) -> Answers:
        """Queue checked requests. Raises ApiError where there is no room: now, or ever, as `check_queue`."""
        self.check_queue(len(requests), lines_up=lines_up)
        try:
            answers = self.background.answers(requests)
        except CapacityError as error:
            raise refused(error, fields, code="cache_capacity_exceeded") from error
        self.metrics.asked(requests)
        return answers

    async def outputs(self, answers: Answers, deadline: Deadline) -> AsyncGenerator[Output, None]:
        """What steps bring, until all has ended. Raises ApiError with what ended a sample before its time."""
        while True:
            try:
                output = await deadline.keep(anext(answers))
            except StopAsyncIteration:
                return
            if output.completion is not None and output.completion.error is not None:
                raise failed(output.completion.error)
            yield output

    def deadline(self, http: HttpRequest) -> Deadline:
        """Of a request."""
        return Deadline(self.settings.timeout_s, http.state.arrived)

    def named(self, name: str | None) -> None:
        """Raise ApiError where a client means another model."""
        if name is not None and name != self.name:
            message = f"there is no model {name!r:.200} here; use {self.name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def end(self) -> None:
        """End all that is under way with an error."""
        self.background.end(ApiError(503, "the server ended before this answer did", code="shutting_down"))

    def _stepped(self, outputs: list[Output]) -> None:
        self.metrics.step(outputs)
        self._line.stepped(outputs)
        if self._share is not None:
            self._share.stepped(outputs)


def _not_allowed(message: str) -> ApiError:
    return ApiError(400, message, param="plan", code="plan_not_allowed")
