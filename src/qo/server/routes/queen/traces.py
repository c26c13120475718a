"""Traces: what consumers noted about messages."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from qo.core.names import checked_key, checked_name
from qo.core.outcome import Trace
from qo.server.context import ServerContext
from qo.server.request import Request, Response, reply
from qo.server.router import Route
from qo.server.routes.queen.dead import READ
from qo.server.routes.queen.queries import Query
from qo.wire.operation import CONSUME
from qo.wire.queen.bodies import TraceBody
from qo.wire.queen.names import group_name, iso, partition_id, read_partition_id, shown_group

MOST_NAMES = 20

_trace = msgspec.json.Decoder(TraceBody)


async def add(context: ServerContext, request: Request) -> Response:
    body = request.read(_trace)
    queue, key = read_partition_id(body.partitionId)
    request.allow(CONSUME, [queue])
    names = tuple(dict.fromkeys(checked_name("traceNames", each) for each in body.traceNames or ()))
    context.check_count("traceNames", names)
    trace = Trace(
        id=str(uuid.uuid4()),
        queue=queue,
        key=key,
        name=checked_key("transactionId", body.transactionId),
        group=group_name(body.consumerGroup),
        names=names[:MOST_NAMES],
        event=checked_name("eventType", body.eventType or "info"),
        data=bytes(body.data),
        created_at=context.broker.store_now(),
    )
    await context.broker.wires.add_trace(trace)
    return reply({"success": True, "traceId": trace.id}, 201)


async def of_message(context: ServerContext, request: Request) -> Response:
    queue, key = read_partition_id(request.path["partition"])
    request.allow(READ, [queue])
    found = await context.broker.wires.traces(queue, key, checked_key("transactionId", request.path["transaction"]))
    return reply({"traces": [_shown(each) for each in found]})


async def by_name(context: ServerContext, request: Request) -> Response:
    query = Query(request)
    request.allow(READ, None)
    name = checked_name("traceName", request.path["name"])
    found, total = await context.broker.wires.traces_by_name(name, query.limit, query.offset)
    shown = [_shown(each) for each in found]
    return reply({"traces": shown, "total": total, "limit": query.limit, "offset": query.offset})


async def names(context: ServerContext, request: Request) -> Response:
    query = Query(request)
    request.allow(READ, None)
    found, total = await context.broker.wires.trace_names(query.limit, query.offset)
    listed = [{"traceName": name, "traceCount": count} for name, count in found]
    return reply({"traceNames": listed, "total": total, "limit": query.limit, "offset": query.offset})


def _shown(trace: Trace) -> dict[str, Any]:
    return {
        "id": trace.id,
        "transactionId": trace.name,
        "partitionId": partition_id(trace.queue, trace.key),
        "queue": trace.queue,
        "partition": trace.key,
        "consumerGroup": shown_group(trace.group),
        "traceNames": list(trace.names),
        "eventType": trace.event,
        "data": msgspec.Raw(trace.data),
        "createdAt": iso(trace.created_at),
    }


ROUTES = [
    Route(
        method="POST",
        path="/api/v1/traces",
        name="queen_trace",
        summary="Note something about a message.",
        handle=add,
        scopes=CONSUME,
        decides=True,
    ),
    Route(
        method="GET",
        path="/api/v1/traces/names",
        name="queen_trace_names",
        summary="The names that traces have.",
        handle=names,
        scopes=READ,
        decides=True,
    ),
    Route(
        method="GET",
        path="/api/v1/traces/by-name/{name*}",
        name="queen_traces_by_name",
        summary="Traces of a name, newest first.",
        handle=by_name,
        scopes=READ,
        decides=True,
    ),
    Route(
        method="GET",
        path="/api/v1/traces/{partition}/{transaction*}",
        name="queen_traces",
        summary="Traces of a message.",
        handle=of_message,
        scopes=READ,
        decides=True,
    ),
]
