"""workers: who registered, what nobody takes, and how many there should be."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from qo.core.errors import Invalid
from qo.core.names import checked_name
from qo.core.scaling import Demand, ScalingSettings, desired
from qo.core.worker import Heartbeat, WorkerInfo, WorkerState
from qo.server.context import ServerContext
from qo.server.request import EMPTY, Request, Response, reply
from qo.wire.operation import CONSUME, FOLLOW, LOOK
from qo.wire.queues import DeletedReply
from qo.wire.workers import KeptReply, ScalingQuery, ScalingReply, WorkersReply

_decode_heartbeat = msgspec.json.Decoder(Heartbeat)


async def workers(context: ServerContext, request: Request) -> Response:
    request.allow(LOOK, [])
    registry = context.broker.workers
    sees = request.caller.sees
    found = [_seen(each, sees) for each in await registry.workers()]
    unserved = [each for each in await registry.unserved() if sees(each.queue)]
    return reply(WorkersReply([each for each in found if each.queues], unserved))


def _seen(worker: WorkerInfo, sees: Callable[[str], bool]) -> WorkerInfo:
    """A worker with those of its queues that the caller may see."""
    queues = tuple(name for name in worker.queues if sees(name))
    return worker if queues == worker.queues else msgspec.structs.replace(worker, queues=queues)


async def heartbeat(context: ServerContext, request: Request) -> Response:
    body = request.read(_decode_heartbeat)
    request.allow(CONSUME, body.queues)
    if body.id != request.path["id"]:
        raise Invalid("id", f"must be '{request.path['id']}', as in the path")
    await _check_own(context, request, body.id)
    return reply(KeptReply(await context.keeper.heartbeat(body)))


async def deregister(context: ServerContext, request: Request) -> Response:
    request.allow(CONSUME, [])
    await _check_own(context, request, request.path["id"])
    await context.keeper.deregister(request.path["id"])
    return reply(DeletedReply(True))


async def _check_own(context: ServerContext, request: Request, id: str) -> None:
    """Whoever is limited to some queues speaks for no worker of others."""
    token = request.caller.token
    if token is not None and token.prefixes:
        for each in await context.broker.workers.workers():
            if each.id == id:
                request.allow(CONSUME, each.queues)


async def scaling(context: ServerContext, request: Request) -> Response:
    query = request.query(ScalingQuery)
    for name in query.queue:
        checked_name("queue", name)
    checked_name("group", query.group)
    request.allow(FOLLOW, query.queue)
    kinds = [checked_name("kind", each) for each in query.kind] or None
    if not 0 <= query.min <= query.max or query.max < 1:
        raise Invalid("max", f"must be at least 1, and min from 0 to max; not {query.max} and {query.min}")
    settings = ScalingSettings(default_count=query.min, max_count=query.max)
    if query.wait:
        until = context.until(query.timeout_ms)
        with context.waiting(request), request.while_here():
            demand = await context.broker.wait_for_demand(query.queue, query.group, kinds, until)
        if not demand.depth:
            return EMPTY
    else:
        demand = await context.broker.inspect.demand(query.queue, query.group, kinds)
    return reply(await _scaling(context, query, demand, settings))


async def _scaling(
    context: ServerContext, query: ScalingQuery, demand: Demand, settings: ScalingSettings
) -> ScalingReply:
    living = [
        each
        for each in await context.broker.workers.workers()
        if each.state is WorkerState.ALIVE and each.group == query.group and set(query.queue) & set(each.queues)
    ]
    now = context.broker.store_now()
    return ScalingReply(
        depth=demand.depth,
        waiting=demand.waiting,
        runnable=demand.runnable,
        running=demand.running,
        oldest_seconds=max(0.0, (now - (demand.oldest_at or now)).total_seconds()),
        workers=len(living),
        max_capacity=sum(each.max_capacity for each in living),
        available_capacity=sum(each.available_capacity for each in living),
        desired=desired(demand, settings, now, workers=len(living)),
        oldest_at=demand.oldest_at,
        next_at=demand.next_at,
        next_seconds=None if demand.next_at is None else max(0.0, (demand.next_at - now).total_seconds()),
    )
