"""Replicas on the machines of a Ray cluster: `serve run winnow.server.ray:app model=smollm2 max_replicas=4`.

Two deployments: the replicas, which hold the model, and fronts, which clients talk to and which go on with a stream on
another replica where one goes away. See docs/deploy.md.
"""

import logging
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette

from winnow.server.errors import RETRY_S, ApiError
from winnow.server.front import Front, new_front_app
from winnow.server.in_process import replied
from winnow.server.replicas import Asked, Head, Lost
from winnow.server.settings import Settings

REPLICA = "Replica"
ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
log = logging.getLogger("winnow.server")


class Options(BaseModel):
    """What `serve run` is told as NAME=VALUE, or a configuration file as `args`."""

    model_config = ConfigDict(extra="forbid")

    model: str = "smollm2"
    """A .gguf file, a directory, a hub id, "smollm2" or "needle"; every machine has to have it at the same place."""
    plan: str | None = None
    device: str | None = None
    dtype: str | None = None
    weights: str = "auto"
    prefill_chunk: int | None = None
    deterministic: bool = True
    """So that a stream that goes on elsewhere is, to the bit, what it would have been."""
    threads: int = 1
    """Of a replica; Ray is told that it takes so many CPUs."""
    gpus: float = 0
    """That Ray is told a replica takes."""
    min_replicas: int = 1
    max_replicas: int = 1
    fronts: int = 1
    settings: dict[str, Any] = {}
    """As of `winnow serve`: max_sequences, max_queue, max_cache_mib, api_key and others, by name."""

    @property
    def server(self) -> Settings:
        """Raises InputError where one of the settings cannot be."""
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in self.settings.items()
        }
        return Settings(**given)


class Replica:
    """The model, on a machine that Ray chooses. It answers fronts alone."""

    def __init__(self, options: Options) -> None:
        import torch

        from winnow.plan import Plan
        from winnow.runtime.llm import LLM
        from winnow.server.app import new_app
        from winnow.server.primitives import keep_few_primitives
        from winnow.server.service import Service

        keep_few_primitives()
        torch.set_num_threads(options.threads)
        names = ("device", "dtype", "weights", "prefill_chunk", "deterministic")
        plan = None if options.plan is None else Plan.parse(options.plan)
        llm = LLM(options.model, plan=plan, **{name: getattr(options, name) for name in names})
        settings = options.server.fronted()
        name = settings.served_model_name or Path(options.model).name
        self._service = Service(llm, settings, name, fronted=True)
        self._app = new_app(self._service)

    async def ask(self, asked: Asked) -> AsyncGenerator[Head | bytes, None]:
        """The head of the reply, and its body as it comes."""
        async for part in replied(self._app, asked):
            yield part

    def metrics(self) -> tuple[str, str]:
        """The name of this replica, and what it shows."""
        return serve.get_replica_context().replica_id.unique_id, self._service.metrics.text().decode()


class RayReplicas:
    """The replicas as a front asks them. Implements `Replicas`; Ray chooses, and ends them."""

    def __init__(self, handle: "DeploymentHandle[Any]") -> None:
        self._handle = handle.options(method_name="ask", stream=True)

    @property
    def ready(self) -> int:
        """Those that Ray counts as running."""
        found = serve.status().applications[serve.get_replica_context().app_name].deployments[REPLICA]
        return int(found.replica_states.get("RUNNING", 0))

    async def ask(self, asked: Asked) -> AsyncGenerator[Head | bytes, None]:
        handle = self._handle if asked.session is None else self._handle.options(session_id=asked.session)
        reply = handle.remote(asked)
        try:
            async for part in reply:
                yield part
        except BackPressureError as error:
            again = {"Retry-After": str(RETRY_S)}
            message = "too many requests wait already; come back in a moment"
            raise ApiError(429, message, code="queue_full", headers=again) from error
        except (RayError, RayServeException) as error:
            log.warning("a replica has gone: %s", type(error).__name__)
            raise Lost from error
        finally:
            reply.cancel()

    async def metrics(self) -> dict[str, str]:
        found = await self._handle.broadcast("metrics").results_async(return_exceptions=True)
        return dict(each for each in found if not isinstance(each, BaseException))  # else it has just ended

    def end(self) -> None:
        """Ray ends replicas, after those that fronts still ask have answered."""


class FrontOfReplicas:
    """What clients talk to."""

    def __init__(self, replicas: "DeploymentHandle[Any]", options: Options) -> None:
        # Where it listens is Ray's to say: no address of this machine alone.
        self._front = Front(RayReplicas(replicas), replace(options.server, host="0.0.0.0"))

    def __serve_build_asgi_app__(self) -> Starlette:
        return new_front_app(self._front)


def app(options: Options) -> serve.Application:
    """The application that `serve run` and configuration files name. Raises InputError where settings cannot be."""
    settings = options.server
    most = settings.max_sequences + settings.max_queue
    replica = serve.deployment(
        name=REPLICA,
        health_check_period_s=2,
        health_check_timeout_s=30,
        # The engine continues max_sequences together and lets others wait, which costs nothing: Ray hands over both.
        max_ongoing_requests=most,
        max_queued_requests=settings.max_queue,
        graceful_shutdown_timeout_s=settings.drain_s,
        ray_actor_options={"num_cpus": options.threads, "num_gpus": options.gpus},
        request_router_config={"request_router_class": ROUTER},
        autoscaling_config={
            "min_replicas": options.min_replicas,
            "max_replicas": options.max_replicas,
            # Below what is continued together an answer is hardly slower for the others beside it.
            "target_ongoing_requests": max(1, settings.max_sequences * 3 // 4),
        },
    )
    front = serve.deployment(
        name="Front",
        num_replicas=options.fronts,
        max_ongoing_requests=10_000,
        # On the head node, whose end is that of Ray Serve: a front that ends elsewhere would cut its clients off.
        ray_actor_options={"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}},
    )
    return front(serve.ingress()(FrontOfReplicas)).bind(replica(Replica).bind(options), options)
