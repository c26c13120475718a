"""Consumer groups: listed with their lag, moved, removed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from qo.core.errors import Invalid, NotFound
from qo.core.lane import Start, StartAt
from qo.core.names import DEFAULT_GROUP, checked_key, checked_name
from qo.core.outcome import GroupPlace, LaneInfo
from qo.server.context import ServerContext
from qo.server.request import Request, Response, reply
from qo.server.router import Route
from qo.server.routes.queen.dead import READ
from qo.server.routes.queen.push import allow_seek
from qo.server.routes.queen.queries import MOST_LISTED, Query
from qo.wire.operation import CONSUME
from qo.wire.queen.bodies import SeekBody, SubscriptionBody
from qo.wire.queen.names import DEFAULT_PARTITION, group_name, iso, partition_id, read_time, shown_group

_seek = msgspec.json.Decoder(SeekBody)
_subscription = msgspec.json.Decoder(SubscriptionBody)


async def lanes_of(context: ServerContext, queue: str, group: str) -> list[LaneInfo]:
    """The lanes of a queue, up to a limit."""
    return list(await context.broker.inspect.lanes(queue, group, 0, MOST_LISTED))


async def groups(context: ServerContext, request: Request) -> Response:
    request.allow(READ, None)
    places = await context.broker.wires.group_places(None, MOST_LISTED)
    return reply({"consumerGroups": [_group(name, own, context) for name, own in _by_name(places).items()]})


async def group(context: ServerContext, request: Request) -> Response:
    request.allow(READ, None)
    name = group_name(request.path["group"])
    places = await context.broker.wires.group_places(name, MOST_LISTED)
    if not places:
        raise NotFound(f"there is no consumer group '{request.path['group']}'")
    shown = _group(name, places, context)
    for queue in shown["queues"]:
        queue["partitions"] = [_lane(queue["queue"], each) for each in await lanes_of(context, queue["queue"], name)]
    return reply(shown)


async def lagging(context: ServerContext, request: Request) -> Response:
    request.allow(READ, None)
    least = Query(request).number("minLagSeconds", 60)
    places = await context.broker.wires.group_places(None, MOST_LISTED)
    late = [each for each in places if each.oldest_at is not None and _seconds(context, each.oldest_at) >= least]
    return reply({"consumerGroups": [_group(name, own, context) for name, own in _by_name(late).items()]})


def _by_name(places: Sequence[GroupPlace]) -> dict[str, list[GroupPlace]]:
    found: dict[str, list[GroupPlace]] = {}
    for each in places:
        found.setdefault(each.info.name, []).append(each)
    return found


def _group(name: str, places: Sequence[GroupPlace], context: ServerContext) -> dict[str, Any]:
    return {
        "name": shown_group(name),
        "totalLag": sum(each.info.lag for each in places),
        "maxTimeLag": max((_seconds(context, each.oldest_at) for each in places), default=0),
        "queues": [
            {
                "queue": each.queue,
                "lag": each.info.lag,
                "timeLagSeconds": _seconds(context, each.oldest_at),
                "subscriptionMode": each.info.start.at.value,
                "subscriptionTimestamp": iso(each.info.start.time or each.info.created_at),
                "lastPoppedAt": iso(each.info.claimed_at),
            }
            for each in places
        ],
    }


def _seconds(context: ServerContext, since: datetime | None) -> float:
    return 0.0 if since is None else round(max((context.broker.store_now() - since).total_seconds(), 0.0), 3)


def _lane(queue: str, lane: LaneInfo) -> dict[str, Any]:
    partition = lane.key or DEFAULT_PARTITION
    return {
        "partition": partition,
        "partitionId": partition_id(queue, partition),
        "lag": lane.lag + lane.leased,
        "processing": lane.leased,
        "offset": lane.position - lane.leased,
        "tail": lane.tail,
    }


async def delete(context: ServerContext, request: Request) -> Response:
    """Everywhere."""
    name = group_name(request.path["group"])
    places = await context.broker.wires.group_places(name, MOST_LISTED)
    with_metadata = _with_metadata(request)
    if with_metadata:
        await context.broker.wires.drop_filters(name)
    count = 0
    for place in places:
        count += await _leave(context, place, with_metadata=with_metadata)
    return _deleted(request, count, with_metadata=with_metadata and bool(places))


async def delete_in_queue(context: ServerContext, request: Request) -> Response:
    name, queue = group_name(request.path["group"]), request.queue
    with_metadata = _with_metadata(request)
    places = [each for each in await context.broker.wires.group_places(name, MOST_LISTED) if each.queue == queue]
    count = 0
    for place in places:
        count += await _leave(context, place, with_metadata=with_metadata)
    return _deleted(request, count, with_metadata=with_metadata and bool(places))


def _with_metadata(request: Request) -> bool:
    return Query(request).text("deleteMetadata") != "false"


async def _leave(context: ServerContext, place: GroupPlace, *, with_metadata: bool) -> int:
    """Forget how far a group is in a queue; and, with the metadata, that it was ever there. In how many partitions."""
    queue, info = place.queue, place.info
    count = len(await lanes_of(context, queue, info.name))
    if info.name == DEFAULT_GROUP:
        await context.broker.admin.seek(queue, info.name, Start())
    elif with_metadata:
        await context.broker.admin.delete_group(queue, info.name)
    else:
        begun = info.start if info.start.at is not StartAt.NEW else Start(StartAt.TIME, info.created_at)
        await context.broker.admin.seek(queue, info.name, begun)
    return count


def _deleted(request: Request, count: int, *, with_metadata: bool) -> Response:
    return reply(
        {
            "success": True,
            "consumerGroup": request.path["group"],
            "deletedPartitions": count,
            "metadataDeleted": with_metadata,
        }
    )


async def subscribe(context: ServerContext, request: Request) -> Response:
    """Move a group to a time, in all of its queues."""
    allow_seek(request, None)
    text = request.read(_subscription).subscriptionTimestamp
    time = read_time("subscriptionTimestamp", text)
    if time is None:
        raise Invalid("subscriptionTimestamp", "must be a time in ISO 8601")
    name = group_name(request.path["group"])
    places = await context.broker.wires.group_places(name, MOST_LISTED)
    for place in places:
        await context.broker.admin.seek(place.queue, name, Start(StartAt.TIME, time))
    return reply(
        {
            "success": True,
            "consumerGroup": request.path["group"],
            "newTimestamp": iso(time),
            "rowsUpdated": len(places),
        }
    )


async def seek(context: ServerContext, request: Request) -> Response:
    return await _seek_to(context, request, _target(request), None)


async def seek_partition(context: ServerContext, request: Request) -> Response:
    to = Start(StartAt.NEW) if not request.body else _target(request)
    return await _seek_to(context, request, to, checked_key("partition", request.path["partition"]))


def _target(request: Request) -> Start:
    body = request.read(_seek)
    if body.toEnd:
        return Start(StartAt.NEW)
    time = read_time("timestamp", body.timestamp)
    if time is None:
        raise Invalid("timestamp", "say toEnd: true, or a timestamp in ISO 8601")
    return Start(StartAt.TIME, time)


async def _seek_to(context: ServerContext, request: Request, to: Start, key: str | None) -> Response:
    queue, name = checked_name("queue", request.queue), group_name(request.path["group"])
    allow_seek(request, [queue])
    await context.broker.inspect.queue(queue)
    await context.broker.admin.create_group([queue], name, Start(StartAt.NEW))
    moved = await context.broker.admin.seek(queue, name, to, key)
    return reply(
        {
            "success": True,
            "consumerGroup": request.path["group"],
            "queue": queue,
            "partition": key,
            "partitionsUpdated": moved,
        }
    )


PLACE = "/api/v1/consumer-groups"
ROUTES = [
    Route(
        method="GET", path=PLACE, name="queen_groups", summary="Groups, with their lag.", handle=groups, scopes=READ,
        decides=True,
    ),
    Route(
        method="GET", path=f"{PLACE}/lagging", name="queen_lagging", summary="Groups that are late.", handle=lagging,
        scopes=READ, decides=True,
    ),
    Route(
        method="POST", path=PLACE + "/{group*}/queues/{queue*}/partitions/{partition*}/seek",
        name="queen_seek_partition", summary="Move a group in one partition.", handle=seek_partition, scopes=CONSUME,
        decides=True,
    ),
    Route(
        method="POST", path=PLACE + "/{group*}/queues/{queue*}/seek", name="queen_seek",
        summary="Move a group in a queue.", handle=seek, scopes=CONSUME, decides=True,
    ),
    Route(
        method="POST", path=PLACE + "/{group*}/subscription", name="queen_subscription",
        summary="Move a group to a time.", handle=subscribe, scopes=CONSUME, decides=True,
    ),
    Route(
        method="DELETE", path=PLACE + "/{group*}/queues/{queue*}", name="queen_delete_group_in_queue",
        summary="Remove a group from a queue.", handle=delete_in_queue,
    ),
    Route(
        method="DELETE", path=PLACE + "/{group*}", name="queen_delete_group", summary="Remove a group everywhere.",
        handle=delete,
    ),
    Route(
        method="GET", path=PLACE + "/{group*}", name="queen_group", summary="One group, by queue and partition.",
        handle=group, scopes=READ, decides=True,
    ),
]  # fmt: skip
