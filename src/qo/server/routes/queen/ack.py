"""ack, one or many; transactions; leases that are held for longer."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta

import msgspec

from qo.core.durations import duration
from qo.core.errors import Invalid
from qo.core.lease import (
    AckAnswer,
    AckByName,
    Acked,
    Complete,
    Extended,
    Extension,
    LeaseToken,
    Obstacle,
    Undone,
    Unit,
    Verdict,
)
from qo.core.message import NewMessage, Pushed, Refused, id_text
from qo.core.names import checked_key
from qo.server.context import ServerContext
from qo.server.request import Request, Response, reply
from qo.server.router import Route
from qo.server.routes.queen.push import check_not_binary, name_of, read_items
from qo.wire.operation import CONSUME, PRODUCE
from qo.wire.queen.bodies import (
    AckBatch,
    AckItem,
    AckResult,
    ExtendBody,
    OperationResult,
    PushItem,
    TransactionBody,
    TransactionReply,
)
from qo.wire.queen.names import group_name, iso, read_partition_id

EXTEND_SECONDS = 60
STALE = "stale lease: it has ended, or was never given; nothing was done"
BEFORE = "already committed"

_ack = msgspec.json.Decoder(AckItem)
_batch = msgspec.json.Decoder(AckBatch)
_transaction = msgspec.json.Decoder(TransactionBody)
_extend = msgspec.json.Decoder(ExtendBody)

REASONS = {
    Obstacle.ACK: "ack_rejected",
    Obstacle.DUPLICATE: "duplicate",
    Obstacle.FULL: "queue_full",
    Obstacle.LEASE: "ack_rejected",
    Obstacle.PUSH: "push_rejected",
    Obstacle.SETTLEMENT: "ack_rejected",
}


async def ack(context: ServerContext, request: Request) -> Response:
    item = request.read(_ack)
    return reply(await _acknowledge(context, request, [item], item.consumerGroup))


async def ack_batch(context: ServerContext, request: Request) -> Response:
    body = request.read(_batch)
    context.check_count("acknowledgments", body.acknowledgments)
    return reply(await _acknowledge(context, request, body.acknowledgments, body.consumerGroup))


async def _acknowledge(
    context: ServerContext, request: Request, items: Sequence[AckItem], group: str | None
) -> list[AckResult]:
    read = [_read(item, group) for item in items]
    acks = [each for each in read if isinstance(each, AckByName)]
    request.allow(CONSUME, {each.queue for each in acks})
    answers = iter(await context.broker.ack_by_name(acks) if acks else [])
    return [
        _result(index, item, each, next(answers)) if isinstance(each, AckByName) else _unread(index, item, each)
        for index, (item, each) in enumerate(zip(items, read, strict=True))
    ]


def _read(item: AckItem, group: str | None, lease: str | None = None) -> AckByName | Invalid:
    try:
        queue, key = read_partition_id(item.partitionId or "")
        return AckByName(
            queue=queue,
            key=key,
            name=checked_key("transactionId", item.transactionId or ""),
            group=group_name(group),
            report=item.report(),
            token=LeaseToken(item.leaseId or lease or "") or None,
        )
    except Invalid as error:
        return error


def _unread(index: int, item: AckItem, error: Invalid) -> AckResult:
    return AckResult(index=index, transactionId=item.transactionId, success=False, error=f"unresolvable: {error}")


def _result(index: int, item: AckItem, ack: AckByName, answer: Acked) -> AckResult:
    success, error, noop = _outcome(item, ack, answer)
    return AckResult(
        index=index,
        transactionId=item.transactionId,
        success=success,
        error=error,
        leaseReleased=answer.lease_ended and success and not noop,
        dlq=success and answer.verdict is Verdict.BURIED,
        noop=noop,
    )


def _outcome(item: AckItem, ack: AckByName, answer: Acked) -> tuple[bool, str | None, bool]:
    """Whether it was done, what was wrong, and whether it had been done before."""
    match answer.answer:
        case AckAnswer.SETTLED | AckAnswer.GIVEN_BACK:
            return True, None, False
        case AckAnswer.BEFORE:
            done = isinstance(ack.report, Complete)
            return done, None if done else BEFORE, done
        case AckAnswer.LOST:
            return False, STALE, False
        case AckAnswer.UNKNOWN:
            return False, f"unresolvable transactionId '{item.transactionId}'", False


async def transaction(context: ServerContext, request: Request) -> Response:
    check_not_binary(request)
    body = request.read(_transaction)
    for name in ("kv", "timers"):
        if getattr(body, name) is not msgspec.UNSET:
            raise Invalid(name, "is not supported; it is a condition, so the transaction is refused")
    items = [item for each in body.operations for item in each.items or ()]
    acks = [each.ack() for each in body.operations if each.type == "ack"]
    unknown = next((each.type for each in body.operations if each.type not in ("push", "ack")), None)
    if unknown is not None:
        raise Invalid("operations", f"there is no operation '{unknown}'; there are push and ack")
    context.check_count("operations", [*items, *acks])
    request.allow(CONSUME, [])
    if items:
        request.allow(PRODUCE, [item.queue for item in items])
    leases = {each for each in body.requiredLeases or () if each}
    context.check_count("requiredLeases", list(leases))
    await context.check_leases(request, [], list(leases))
    shared = next(iter(leases)) if len(leases) == 1 else None
    read = [_read(each, each.consumerGroup, shared) for each in acks]
    pushes = read_items(context, request, items)
    unread = next((each for each in [*read, *pushes] if isinstance(each, Invalid)), None)
    if unread is not None:
        reason = "ack_rejected" if unread in read else "push_rejected"
        return reply(_rolled_back(str(unread), reason))
    unit = Unit(
        acks=tuple(each for each in read if isinstance(each, AckByName)),
        pushes=tuple(each for each in pushes if isinstance(each, NewMessage)),
        refuse_duplicates=True,
        leases=tuple(LeaseToken(each) for each in sorted(leases)),
    )
    request.allow(CONSUME, {each.queue for each in unit.acks})
    answer = await context.broker.transact(unit)
    if isinstance(answer, Undone):
        return reply(_rolled_back(answer.reason, REASONS[answer.obstacle]))
    results = _results(body, unit, answer.acked, answer.pushed)
    return reply(TransactionReply(transactionId=str(uuid.uuid4()), success=True, results=results))


def _rolled_back(why: str, reason: str) -> TransactionReply:
    return TransactionReply(
        transactionId=str(uuid.uuid4()),
        success=False,
        results=[],
        error=f"transaction rolled back: {why}",
        reason=reason,
    )


def _results(
    body: TransactionBody, unit: Unit, acked: Sequence[Acked], pushed: Sequence[Pushed]
) -> list[OperationResult]:
    """Flat, one for each item, in the order of the operations."""
    answers, stored = iter(acked), iter(zip(unit.pushes, pushed, strict=True))
    results: list[OperationResult] = []
    for operation in body.operations:
        if operation.type == "ack":
            dlq = next(answers).verdict is Verdict.BURIED
            results.append(
                OperationResult(
                    index=len(results), type="ack", success=True, transactionId=operation.transactionId, dlq=dlq
                )
            )
        for item in operation.items or ():
            results.append(_stored(len(results), item, *next(stored)))
    return results


def _stored(index: int, item: PushItem, message: NewMessage, answer: Pushed) -> OperationResult:
    assert not isinstance(answer, Refused), "a refused push undoes its unit"
    return OperationResult(
        index=index,
        type="push",
        success=True,
        transactionId=name_of(message),
        messageId=id_text(answer.id),
        queueName=item.queue,
    )


async def extend(context: ServerContext, request: Request) -> Response:
    lease = request.path["lease"]
    seconds = request.read(_extend).seconds
    length = duration("seconds", timedelta(seconds=EXTEND_SECONDS) if not seconds or seconds <= 0 else seconds)
    await context.check_leases(request, [], [lease])
    [held] = await context.broker.extend([Extension(token=LeaseToken(lease), lease=length)])
    until = iso(held.expires_at) if isinstance(held, Extended) else None
    return reply(
        {
            "leaseId": lease,
            "success": until is not None,
            "renewed": held.lanes if isinstance(held, Extended) else 0,
            "newExpiresAt": until,
            "expiresAt": until,
            "lease_expires_at": until,
        }
    )


ROUTES = [
    Route(
        method="POST",
        path="/api/v1/ack",
        name="queen_ack",
        summary="Say what became of a message.",
        handle=ack,
        scopes=CONSUME,
        decides=True,
    ),
    Route(
        method="POST",
        path="/api/v1/ack/batch",
        name="queen_ack_batch",
        summary="Say what became of messages.",
        handle=ack_batch,
        scopes=CONSUME,
        decides=True,
        large=True,
    ),
    Route(
        method="POST",
        path="/api/v1/transaction",
        name="queen_transaction",
        summary="Acknowledge and push together, or not at all.",
        handle=transaction,
        scopes=CONSUME,
        decides=True,
        large=True,
    ),
    Route(
        method="POST",
        path="/api/v1/lease/{lease*}/extend",
        name="queen_extend",
        summary="Hold a lease for longer.",
        handle=extend,
        scopes=CONSUME,
        decides=True,
    ),
]
