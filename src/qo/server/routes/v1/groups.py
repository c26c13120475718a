"""groups: create, seek, delete, list."""

from __future__ import annotations

import msgspec

from qo.core.errors import Invalid
from qo.core.lane import Filter, Start
from qo.core.names import checked_key, checked_name
from qo.server.house import House
from qo.server.request import Request, Response, reply
from qo.server.router import CONSUME, LOOK, Route
from qo.wire.claims import read_start_text
from qo.wire.queues import (
    CountReply,
    CreatedReply,
    DeletedReply,
    FilterGroupBody,
    GroupsReply,
    GroupStartBody,
    SeekBody,
    write_group,
)

_start = msgspec.json.Decoder(GroupStartBody)
_filter = msgspec.json.Decoder(FilterGroupBody)
_seek = msgspec.json.Decoder(SeekBody)


async def groups(house: House, request: Request) -> Response:
    found = await house.broker.inspect.groups(checked_name("queue", request.queue))
    return reply(GroupsReply([write_group(each) for each in found]))


async def create(house: House, request: Request) -> Response:
    start = read_start_text(request.read(_start).start)
    name, group = checked_name("queue", request.queue), checked_name("group", request.path["group"])
    return reply(CreatedReply(await house.broker.admin.create_group([name], group, start, nonce=request.nonce)))


async def create_anywhere(house: House, request: Request) -> Response:
    body = request.read(_filter)
    house.check_count("queues", body.queues)
    named = [checked_name("queues", each) for each in body.queues]
    by_filter = body.namespace is not None or body.task is not None
    if bool(named) == by_filter:
        raise Invalid("queues", "a group names queues, or a namespace or task, and not both")
    request.allow(CONSUME, None if by_filter else named)
    where = Filter(body.namespace, body.task) if by_filter else named
    group, start = checked_name("group", request.path["group"]), read_start_text(body.start)
    return reply(CreatedReply(await house.broker.admin.create_group(where, group, start, nonce=request.nonce)))


async def delete(house: House, request: Request) -> Response:
    name, group = checked_name("queue", request.queue), checked_name("group", request.path["group"])
    return reply(DeletedReply(await house.broker.admin.delete_group(name, group, nonce=request.nonce)))


async def seek(house: House, request: Request) -> Response:
    body = request.read(_seek)
    name, group = checked_name("queue", request.queue), checked_name("group", request.path["group"])
    key = None if body.key is None else checked_key("key", body.key)
    moved = await house.broker.admin.seek(name, group, _target(body.to), key, nonce=request.nonce)
    return reply(CountReply(moved))


def _target(to: str | int) -> Start | int:
    if isinstance(to, int):
        return to
    try:
        return read_start_text(to)
    except Invalid as error:
        raise Invalid("to", error.problem) from None


ROUTES = [
    Route(
        method="GET",
        path="/v1/queues/{queue}/groups",
        name="groups",
        summary="The groups of a queue, and how much is ahead of each.",
        handle=groups,
        scopes=LOOK,
        answers={200: GroupsReply},
    ),
    Route(
        method="PUT",
        path="/v1/queues/{queue}/groups/{group}",
        name="create_group",
        summary="Register a group; the first registration wins.",
        handle=create,
        scopes=CONSUME,
        body=GroupStartBody,
        body_needed=False,
        answers={200: CreatedReply},
    ),
    Route(
        method="PUT",
        path="/v1/groups/{group}",
        name="create_group_anywhere",
        summary="Register a group in several queues, or in all of a namespace or task, those that appear later too.",
        handle=create_anywhere,
        scopes=CONSUME,
        decides=True,
        body=FilterGroupBody,
        answers={200: CreatedReply},
    ),
    Route(
        method="DELETE",
        path="/v1/queues/{queue}/groups/{group}",
        name="delete_group",
        summary="Remove a group with its progress.",
        handle=delete,
        answers={200: DeletedReply},
    ),
    Route(
        method="POST",
        path="/v1/queues/{queue}/groups/{group}/seek",
        name="seek",
        summary="Move a group; ends its leases and drops its retries. How many lanes were moved.",
        handle=seek,
        body=SeekBody,
        answers={200: CountReply},
    ),
]
