"""groups: registering one, in a queue or in many."""

from __future__ import annotations

import msgspec

from qo.core.errors import Invalid
from qo.core.lane import Filter
from qo.core.names import checked_name
from qo.server.context import ServerContext
from qo.server.request import Request, Response, reply
from qo.wire.claims import read_start_text
from qo.wire.operation import CONSUME
from qo.wire.queues import (
    CreatedReply,
    FilterGroupBody,
    GroupStartBody,
)

_start = msgspec.json.Decoder(GroupStartBody)
_filter = msgspec.json.Decoder(FilterGroupBody)


async def create(context: ServerContext, request: Request) -> Response:
    start = read_start_text(request.read(_start).start)
    name, group = checked_name("queue", request.queue), checked_name("group", request.path["group"])
    return reply(CreatedReply(await context.broker.admin.create_group([name], group, start, nonce=request.nonce)))


async def create_anywhere(context: ServerContext, request: Request) -> Response:
    body = request.read(_filter)
    context.check_count("queues", body.queues)
    named = [checked_name("queues", each) for each in body.queues]
    by_filter = body.namespace is not None or body.task is not None
    if bool(named) == by_filter:
        raise Invalid("queues", "a group names queues, or a namespace or task, and not both")
    request.allow(CONSUME, None if by_filter else named)
    where = Filter(body.namespace, body.task) if by_filter else named
    group, start = checked_name("group", request.path["group"]), read_start_text(body.start)
    return reply(CreatedReply(await context.broker.admin.create_group(where, group, start, nonce=request.nonce)))
