"""What dashboards ask for: queues, depths, namespaces, tasks, numbers. Bounded reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qo.core.names import DEFAULT_GROUP, checked_name
from qo.core.outcome import Depth, LaneInfo, QueueInfo
from qo.core.version import __version__
from qo.metrics.registry import as_json
from qo.server.context import ServerContext
from qo.server.request import Request, Response, reply
from qo.server.router import Route
from qo.server.routes.queen.dead import READ
from qo.server.routes.queen.groups import lanes_of
from qo.server.routes.queen.queries import MOST_LISTED, Query
from qo.wire.queen.names import DEFAULT_PARTITION, group_name, iso, partition_id, shown_group
from qo.wire.queen.options import options_of

MOST_COUNTED = 200
"""Queues whose messages one answer counts."""


async def _visible(context: ServerContext, request: Request, query: Query) -> list[QueueInfo]:
    """The queues that the caller may see, and that the query chooses."""
    found = await context.broker.inspect.queues("", MOST_LISTED)
    namespace, task, search = query.text("namespace"), query.text("task"), query.text("search")
    return [
        each
        for each in found
        if request.caller.sees(each.name)
        and namespace in (None, each.namespace)
        and task in (None, each.task)
        and (search is None or search in each.name)
    ]


async def _counted(context: ServerContext, info: QueueInfo) -> dict[str, Any]:
    group, depth = await worst(context, info.name)
    return {**_described(info), **_numbers(depth), "group": shown_group(group)}


def _described(info: QueueInfo) -> dict[str, Any]:
    return {
        "id": info.name,
        "name": info.name,
        "queue": info.name,
        "namespace": info.namespace,
        "task": info.task,
        "paused": info.paused,
        "createdAt": iso(info.created_at),
    }


def _numbers(depth: Depth) -> dict[str, Any]:
    return {
        "pending": depth.ready + depth.retrying + depth.leased,
        "ready": depth.ready,
        "processing": depth.leased,
        "delayed": depth.delayed,
        "deadLetter": depth.dead,
        "oldestAt": iso(depth.oldest_at),
    }


async def worst(context: ServerContext, queue: str) -> tuple[str, Depth]:
    """The group that is furthest behind, of those that have popped; none has: the default group."""
    known = [each for each in await context.broker.inspect.groups(queue) if each.claimed_at is not None]
    names = [each.name for each in known] or [DEFAULT_GROUP]
    depths = [(name, await context.broker.inspect.depth(queue, name)) for name in names]
    return max(depths, key=lambda each: each[1].ready + each[1].retrying + each[1].leased)


async def overview(context: ServerContext, request: Request) -> Response:
    request.allow(READ, [])
    found = await _visible(context, request, Query(request))
    counted = [await _counted(context, each) for each in found[:MOST_COUNTED]]
    return reply(
        {
            "queues": len(found),
            "namespaces": len({each.namespace for each in found if each.namespace}),
            "tasks": len({each.task for each in found if each.task}),
            "messages": {
                name: sum(each[name] for each in counted) for name in ("pending", "processing", "delayed", "deadLetter")
            },
            "countedQueues": len(counted),
            "timestamp": iso(context.broker.store_now()),
        }
    )


async def queues(context: ServerContext, request: Request) -> Response:
    request.allow(READ, [])
    query = Query(request)
    found = await _visible(context, request, query)
    page = found[query.offset : query.offset + query.limit]
    counted = [await _counted(context, each) for each in page[:MOST_COUNTED]]
    return reply({"queues": counted, "total": len(found)})


async def queue(context: ServerContext, request: Request) -> Response:
    info = await context.broker.inspect.queue(checked_name("queue", request.queue))
    group, depth = await worst(context, info.name)
    lanes = await lanes_of(context, info.name, group)
    return reply(
        {
            **_described(info),
            **_numbers(depth),
            "options": options_of(info.settings),
            "partitions": [_lane(info.name, each) for each in lanes],
        }
    )


def _lane(queue: str, lane: LaneInfo) -> dict[str, Any]:
    partition = lane.key or DEFAULT_PARTITION
    return {
        "partition": partition,
        "name": partition,
        "id": partition_id(queue, partition),
        "partitionId": partition_id(queue, partition),
        "queue": queue,
        "pending": lane.lag + lane.leased,
        "processing": lane.leased,
        "firstOffset": lane.first,
        "nextOffset": lane.tail,
    }


async def depth(context: ServerContext, request: Request) -> Response:
    name = checked_name("queue", request.queue)
    await context.broker.inspect.queue(name)
    asked = Query(request).text("group")
    if asked is None:
        group, found = await worst(context, name)
    else:
        group = group_name(asked)
        found = await context.broker.inspect.depth(name, group)
    lanes = await lanes_of(context, name, group)
    partitions = [{"partition": each["partition"], "pending": each["pending"]} for each in _pending(name, lanes)]
    return reply(
        {
            **_numbers(found),
            "queue": name,
            "group": asked,
            "partitionsPending": len(partitions),
            "partitions": partitions,
        }
    )


def _pending(queue: str, lanes: Sequence[LaneInfo]) -> list[dict[str, Any]]:
    return [shown for shown in (_lane(queue, each) for each in lanes) if shown["pending"] > 0]


async def namespaces(context: ServerContext, request: Request) -> Response:
    return await _named(context, request, "namespace")


async def tasks(context: ServerContext, request: Request) -> Response:
    return await _named(context, request, "task")


async def _named(context: ServerContext, request: Request, what: str) -> Response:
    request.allow(READ, [])
    counts: dict[str, int] = {}
    for each in await _visible(context, request, Query(request)):
        name = getattr(each, what)
        if name:
            counts[name] = counts.get(name, 0) + 1
    return reply({f"{what}s": [{what: name, "queues": count} for name, count in sorted(counts.items())]})


async def partitions(context: ServerContext, request: Request) -> Response:
    request.allow(READ, [])
    query = Query(request)
    wanted = query.text("queue")
    found: list[dict[str, Any]] = []
    for info in await _visible(context, request, query):
        if wanted in (None, info.name) and len(found) < MOST_LISTED:
            found += [_lane(info.name, each) for each in await lanes_of(context, info.name, DEFAULT_GROUP)]
    return reply({"partitions": found[query.offset : query.offset + query.limit], "total": len(found)})


async def status(context: ServerContext, request: Request) -> Response:
    request.allow(READ, [])
    counted = [
        await _counted(context, each) for each in (await _visible(context, request, Query(request)))[:MOST_COUNTED]
    ]
    return reply(
        {
            "status": "healthy",
            "version": __version__,
            "queues": counted,
            "messages": {
                name: sum(each[name] for each in counted) for name in ("pending", "processing", "delayed", "deadLetter")
            },
            "waiters": context.all_waiting,
            "timestamp": iso(context.broker.store_now()),
        }
    )


async def analytics(context: ServerContext, request: Request) -> Response:
    """What was counted since this process began."""
    request.allow(READ, [])
    counted = as_json(context.broker.metrics.metrics())
    return reply({"since": "this process began", "metrics": counted, "timestamp": iso(context.broker.store_now())})


async def refresh(context: ServerContext, request: Request) -> Response:
    """Nothing to refresh: numbers are computed when asked for."""
    request.allow(READ, [])
    return reply({"success": True, "refreshedAt": iso(context.broker.store_now())})


def _route(path: str, name: str, summary: str, handle: Any, method: str = "GET", *, decides: bool = True) -> Route:
    return Route(
        method=method, path=path, name=f"queen_{name}", summary=summary, handle=handle, scopes=READ, decides=decides
    )


ROUTES = [
    _route("/api/v1/resources/overview", "overview", "What there is in all.", overview),
    _route("/api/v1/resources/queues", "queues", "Queues, and what is in them.", queues),
    _route("/api/v1/resources/queues/{queue*}/depth", "depth", "What is ahead of a group.", depth, decides=False),
    _route("/api/v1/resources/queues/{queue*}", "queue", "One queue.", queue, decides=False),
    _route("/api/v1/resources/namespaces", "namespaces", "Namespaces.", namespaces),
    _route("/api/v1/resources/tasks", "tasks", "Tasks.", tasks),
    _route("/api/v1/resources/partitions", "partitions", "Partitions.", partitions),
    _route("/api/v1/status", "status", "How the server is.", status),
    _route("/api/v1/status/queues", "status_queues", "Queues, and what is in them.", queues),
    _route("/api/v1/status/queues/{queue*}", "status_queue", "One queue.", queue, decides=False),
    _route("/api/v1/status/analytics", "analytics", "What was counted.", analytics),
    _route("/api/v1/analytics/system-metrics", "system_metrics", "What was counted.", analytics),
    _route("/api/v1/analytics/worker-metrics", "worker_metrics", "What was counted.", analytics),
    _route("/api/v1/stats/refresh", "refresh", "Nothing needs refreshing.", refresh, "POST"),
]
