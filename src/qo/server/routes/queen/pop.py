"""pop: by queue, by partition, by namespace and task."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from qo.core.durations import duration
from qo.core.lane import Filter
from qo.core.lease import CLAIM_LIMIT, Claimed, Delivered, LeaseToken, Nothing, Want
from qo.core.message import PRODUCER, TRACE, TRANSACTION, id_text
from qo.core.names import checked_key, checked_name
from qo.server.context import ServerContext
from qo.server.request import EMPTY, Request, Response, reply
from qo.server.router import Route
from qo.server.routes.queen.queries import Query
from qo.wire.content import packed
from qo.wire.operation import CONSUME
from qo.wire.queen.bodies import PoppedMessage, PopReply
from qo.wire.queen.names import DEFAULT_PARTITION, group_name, iso, partition_id, read_start, shown_group
from qo.wire.queen.options import POPPED

DEFAULT_BATCH = 200
DEFAULT_TIMEOUT_MS = 30_000
AUTOPILOT_PARTITIONS = 50
"""From how many partitions a pop takes that leaves it to the server."""

known_partition_id = lru_cache(maxsize=4096)(partition_id)


async def pop(context: ServerContext, request: Request) -> Response:
    return await _pop(context, request, queues=(checked_name("queue", request.queue),))


async def pop_partition(context: ServerContext, request: Request) -> Response:
    queue, key = checked_name("queue", request.queue), checked_key("partition", request.path["partition"])
    return await _pop(context, request, queues=(queue,), key=key)


async def pop_anywhere(context: ServerContext, request: Request) -> Response:
    query = Query(request)
    chosen = Filter(query.text("namespace"), query.text("task"))
    request.allow(CONSUME, None)  # it may meet any queue
    return await _pop(context, request, filter=chosen)


async def _pop(
    context: ServerContext,
    request: Request,
    *,
    queues: tuple[str, ...] = (),
    filter: Filter | None = None,
    key: str | None = None,
) -> Response:
    query = Query(request)
    group = group_name(query.text("consumerGroup"))
    default = context.settings.queen.default_subscription
    mode, begin = query.text("subscriptionMode"), query.text("subscriptionFrom")
    start = read_start(group, mode, begin, context.broker.store_now(), default)
    lease = query.number("leaseSeconds", 0)
    partitions = AUTOPILOT_PARTITIONS if query.flag("autopilot") else 1
    want = Want(
        token=LeaseToken(secrets.token_hex(16)),
        queues=queues,
        filter=filter,
        group=group,
        start=start,
        key=key,
        messages=min(query.positive("batch", DEFAULT_BATCH), CLAIM_LIMIT),
        lanes=min(query.positive("partitions", partitions), CLAIM_LIMIT),
        lease=duration("leaseSeconds", lease) if lease > 0 else None,
        auto_settle=query.flag("autoAck"),
        new_queue=POPPED,
    )
    answer = await _claimed(context, request, want, query)
    return EMPTY if isinstance(answer, Nothing) else reply(_reply(answer.deliveries, want))


async def _claimed(context: ServerContext, request: Request, want: Want, query: Query) -> Claimed | Nothing:
    if not query.flag("wait"):
        with request.while_here():
            return await context.broker.claim(want)
    until = context.until(max(query.number("timeout", DEFAULT_TIMEOUT_MS), 0))
    with context.waiting(request), request.while_here():
        answer = await context.broker.claim_or_wait(want, until)
        return await context.still_theirs(request, None if want.filter else want.queues, answer)


def _reply(deliveries: Sequence[Delivered], want: Want) -> PopReply:
    lease, group = "" if want.auto_settle else deliveries[0].token, shown_group(want.group)
    messages = [_message(each, lease, group) for each in deliveries]
    first = messages[0]
    return PopReply(
        queue=first.queue,
        partition=first.partition,
        partitionId=first.partitionId,
        leaseId=lease,
        consumerGroup=group,
        messages=messages,
        partitionsClaimed=len({each.partitionId for each in messages}),
    )


def _message(delivered: Delivered, lease: str, group: str) -> PoppedMessage:
    headers = delivered.headers
    partition = delivered.key or DEFAULT_PARTITION
    return PoppedMessage(
        id=id_text(delivered.id),
        transactionId=headers.get(TRANSACTION) or id_text(delivered.id),
        traceId=headers.get(TRACE),
        data=shown_payload(delivered.payload, headers),
        producerSub=headers.get(PRODUCER),
        createdAt=iso(delivered.created_at),
        queue=delivered.queue,
        partitionId=known_partition_id(delivered.queue, partition),
        partition=partition,
        leaseId=lease,
        consumerGroup=group,
        deliveryAttempt=delivered.attempt,
        offset=delivered.offset,
    )


def shown_payload(payload: bytes, headers: object) -> msgspec.Raw:
    """JSON as it came; other bytes, which our own wire can carry, as base64 text."""
    plain, encoded = packed(payload, headers if isinstance(headers, dict) else None)
    return plain if isinstance(plain, msgspec.Raw) else msgspec.Raw(msgspec.json.encode(encoded))


ROUTES = [
    Route(
        method="GET",
        path="/api/v1/pop/queue/{queue*}/partition/{partition*}",
        name="queen_pop_partition",
        summary="Pop from one partition.",
        handle=pop_partition,
        scopes=CONSUME,
        peeks=False,
    ),
    Route(
        method="GET",
        path="/api/v1/pop/queue/{queue*}",
        name="queen_pop",
        summary="Pop from a queue.",
        handle=pop,
        scopes=CONSUME,
        peeks=False,
    ),
    Route(
        method="GET",
        path="/api/v1/pop",
        name="queen_pop_anywhere",
        summary="Pop from the queues of a namespace or task.",
        handle=pop_anywhere,
        scopes=CONSUME,
        peeks=False,
        decides=True,
    ),
]
