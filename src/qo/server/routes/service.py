"""What the server says about itself: alive, ready, measured, described."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from qo.core.errors import QoError, Unavailable
from qo.core.names import DEFAULT_GROUP
from qo.core.version import __version__
from qo.metrics.registry import Gauge, Labels, Metric, as_json, prometheus_text
from qo.server.authenticator import ANYONE, Caller
from qo.server.context import ServerContext
from qo.server.openapi import describe
from qo.server.request import Request, Response, reply
from qo.server.router import Route
from qo.server.siblings import of_all
from qo.wire.operation import FOLLOW
from qo.wire.problems import problem_of

READY_SECONDS = 5
PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"
_PLAIN = (b"text/plain", b"openmetrics")


class LiveReply(msgspec.Struct):
    status: str = "alive"


class ReadyReply(msgspec.Struct):
    status: str = "ready"


class HealthBody(msgspec.Struct, kw_only=True):
    """Whether this server can do its work."""

    status: str
    version: str
    waiters: int
    problem: str | None = None


async def livez(_: ServerContext, __: Request) -> Response:
    return reply(LiveReply())


async def readyz(context: ServerContext, _: Request) -> Response:
    await _check(context)
    return reply(ReadyReply())


async def _check(context: ServerContext) -> None:
    if context.stopping:
        raise Unavailable("this server is stopping")
    try:
        async with asyncio.timeout(READY_SECONDS):
            await context.broker.inspect.ready()
    except TimeoutError:
        raise Unavailable(f"the store has not answered within {READY_SECONDS} s") from None


async def health(context: ServerContext, _: Request) -> Response:
    body = HealthBody(status="healthy", version=__version__, waiters=context.all_waiting)
    try:
        await _check(context)
    except QoError as error:
        body.status, body.problem = "unhealthy", str(error)
        return reply(body, problem_of(error).status)
    return reply(body)


async def metrics(context: ServerContext, request: Request) -> Response:
    reader = await _reader(context, request)
    accepted = request.headers.get(b"accept", b"")
    if any(kind in accepted for kind in _PLAIN):
        return await prometheus(context, request)
    return reply(as_json(await all_metrics(context, reader)))


async def prometheus(context: ServerContext, request: Request) -> Response:
    reader = await _reader(context, request)
    return Response(200, prometheus_text(await all_metrics(context, reader)).encode(), PROMETHEUS)


async def _reader(context: ServerContext, request: Request) -> Caller:
    """Metrics are for everyone who can reach the server, unless its operator says otherwise."""
    if context.settings.metrics.public:
        return ANYONE
    caller = await context.authenticator.identify(request.headers)
    caller.check(FOLLOW, [])
    return caller


async def all_metrics(context: ServerContext, reader: Caller) -> list[Metric]:
    """What was counted, and what the store says now of the queues that the reader may see."""
    counted = await of_all(context.siblings, context.broker.metrics.metrics())
    return [*counted, *await _queue_metrics(context, reader)]


async def _queue_metrics(context: ServerContext, reader: Caller) -> Sequence[Metric]:
    """The depth and age of a bounded number of queues, for their default group."""
    inspect, now = context.broker.inspect, context.broker.store_now()
    limit = context.settings.metrics.queues
    depths: dict[Labels, float] = {}
    ages: dict[Labels, float] = {}
    unserved: dict[Labels, float] = {}
    states: dict[Labels, float] = {}
    up = 1.0
    try:
        async with asyncio.timeout(READY_SECONDS):
            for queue in await inspect.queues("", limit) if limit else ():
                if not reader.sees(queue.name):
                    continue
                depth = await inspect.depth(queue.name, DEFAULT_GROUP)
                for state in ("ready", "retrying", "leased", "delayed", "dead"):
                    depths[queue.name, state] = getattr(depth, state)
                oldest = depth.oldest_at or now
                ages[(queue.name,)] = max(0.0, (now - oldest).total_seconds())
            for each in await context.broker.workers.unserved() if limit else ():
                if not reader.sees(each.queue):
                    continue
                unserved[each.queue, each.group, each.kind] = max(0.0, (now - each.oldest_at).total_seconds())
            for worker in await context.broker.workers.workers() if limit else ():
                if not any(map(reader.sees, worker.queues)):
                    continue
                states[(worker.state,)] = states.get((worker.state,), 0) + 1
    except (QoError, TimeoutError):
        up = 0.0
    return [
        Gauge("qo_store_up", "Whether the store could be asked for these numbers.", _given(up)),
        Gauge("qo_queue_depth", "Messages of the default group, by state.", _given(depths), ["queue", "state"]),
        Gauge("qo_queue_oldest_age_seconds", "Age of the oldest waiting message.", _given(ages), ["queue"]),
        Gauge(
            "qo_unserved_seconds",
            "How long the oldest message waits of a kind that no worker takes.",
            _given(unserved),
            ["queue", "group", "kind"],
        ),
        Gauge("qo_workers", "Workers that are registered, by state.", _given(states), ["state"]),
    ]


def _given(value: dict[Labels, float] | float) -> Callable[[], dict[Labels, float] | float]:
    return lambda: value


def routes(others: Sequence[Route]) -> list[Route]:
    """The routes of this file; the document describes the others too."""

    async def openapi(_: ServerContext, __: Request) -> Response:
        return Response(200, document)

    own = [
        Route(
            method="GET",
            path="/livez",
            name="livez",
            summary="Whether the process runs.",
            handle=livez,
            scopes=None,
            replies={200: LiveReply},
        ),
        Route(
            method="GET",
            path="/readyz",
            name="readyz",
            summary="Whether the store can be reached and its schema is right; else 503.",
            handle=readyz,
            scopes=None,
            replies={200: ReadyReply},
        ),
        Route(
            method="GET",
            path="/health",
            name="health",
            summary="The same, with a few words.",
            handle=health,
            scopes=None,
            replies={200: HealthBody, 503: HealthBody},
        ),
        Route(
            method="GET",
            path="/metrics",
            name="metrics",
            summary="Metrics: for Prometheus if Accept says text/plain or openmetrics, else as JSON.",
            handle=metrics,
            scopes=None,
            replies={200: dict[str, Any]},
        ),
        Route(
            method="GET",
            path="/metrics/prometheus",
            name="prometheus",
            summary="Metrics for Prometheus.",
            handle=prometheus,
            scopes=None,
            replies={200: str},
            content="text/plain",
        ),
        Route(
            method="GET",
            path="/v1/openapi.json",
            name="openapi",
            summary="This document.",
            handle=openapi,
            scopes=None,
            replies={200: dict[str, Any]},
        ),
    ]
    document = msgspec.json.encode(describe([*others, *own]))
    return own
