"""claim, settle, extend, and units."""

from __future__ import annotations

import secrets

import msgspec

from qo.broker.batcher import parts_of
from qo.core.errors import Invalid, TooLarge
from qo.core.lease import KINDS_LIMIT, QUEUES_LIMIT, THEN_LIMIT, Claimed, LeaseToken, Nothing, Undone, Unit, Want
from qo.core.message import check_priority
from qo.server.context import ServerContext
from qo.server.request import EMPTY, Request, Response, reply
from qo.server.routes.v1.messages import read_messages
from qo.wire.claims import ClaimBody, ClaimQuery, ClaimReply, WantBody, read_want, write_deliveries
from qo.wire.operation import CONSUME, PRODUCE
from qo.wire.settling import (
    ExtendBody,
    ExtendReply,
    SettleBody,
    SettleReply,
    UnitBody,
    read_ack,
    read_extension,
    read_settlement,
    write_claimed,
    write_done,
    write_held,
    write_settled,
    write_undone,
)

EXTEND_LIMIT = 2000
"""Leases that are extended in one commit."""
ASK_AGAIN = b"qo-ask-again"
OWNER_LIMITED = b"qo-owner-limited"

_claim = msgspec.json.Decoder(ClaimBody)
_settle = msgspec.json.Decoder(SettleBody)
_extend = msgspec.json.Decoder(ExtendBody)
_unit = msgspec.json.Decoder(UnitBody)


async def claim_queue(context: ServerContext, request: Request) -> Response:
    body = request.read(_claim)
    if body.queues and body.queues != [request.queue]:
        raise Invalid("queues", "the path names the queue; POST /v1/claim takes several")
    body.queues = [request.queue]
    if request.query_text:
        query = request.query(ClaimQuery)
        for name in ClaimQuery.__struct_fields__:
            if (value := getattr(query, name)) is not None:
                setattr(body, name, value)
    return await _answer(context, request, body)


async def claim(context: ServerContext, request: Request) -> Response:
    body = request.read(_claim)
    _allow(request, body)
    return await _answer(context, request, body)


def _allow(request: Request, body: WantBody) -> None:
    """A claim by a filter may meet any queue."""
    request.allow(CONSUME, body.queues if body.namespace is None and body.task is None else None)


async def _answer(context: ServerContext, request: Request, body: ClaimBody) -> Response:
    want = context.limited(read_want(body, secrets.token_hex(16)))
    answer = await (_wait(context, request, body, want) if body.wait else _ask(context, request, want))
    if isinstance(answer, Nothing):
        return _nothing(answer)
    return reply(ClaimReply(write_deliveries(answer.deliveries)))


async def _ask(context: ServerContext, request: Request, want: Want) -> Claimed | Nothing:
    with request.while_here():
        return await context.broker.claim(want)


async def _wait(context: ServerContext, request: Request, body: ClaimBody, want: Want) -> Claimed | Nothing:
    until = context.until(body.timeout_ms)
    check_priority(body.priority)
    with context.waiting(request), context.keeper.parked(want.owner), request.while_here():
        answer = await context.broker.claim_or_wait(want, until, body.priority)
        return await context.still_theirs(request, None if want.filter else want.queues, answer)


def _nothing(answer: Nothing) -> Response:
    headers = []
    if answer.ask_again is not None:
        headers.append((ASK_AGAIN, answer.ask_again.isoformat().encode()))
    if answer.owner_limited:
        headers.append((OWNER_LIMITED, b"true"))
    return EMPTY._replace(headers=tuple(headers)) if headers else EMPTY


async def settle(context: ServerContext, request: Request) -> Response:
    body = request.read(_settle)
    context.check_count("items", body.items)
    _check_then(body.then)
    await context.check_leases(request, [each.lane for each in body.items])
    for want in body.then:
        _allow(request, want)
    items = [read_settlement(each) for each in body.items]
    wants = [context.limited(read_want(each, secrets.token_hex(16)), len(body.then)) for each in body.then]
    if wants:
        with request.while_here():
            settled, claimed = await context.broker.settle(items, wants)
    else:
        settled, claimed = await context.broker.settle(items)
    context.streams.settled(items, settled)
    return reply(SettleReply(write_settled(settled), [write_claimed(each) for each in claimed]))


def _check_then(wants: list[WantBody]) -> None:
    """All of them are served in one commit."""
    if len(wants) > THEN_LIMIT:
        raise TooLarge("then", f"must have at most {THEN_LIMIT} claims, not {len(wants)}")
    amounts = {
        "queues": (sum(len(each.queues) for each in wants), QUEUES_LIMIT),
        "kinds": (sum(len(each.kinds or ()) for each in wants), KINDS_LIMIT),
        "namespace": (sum(each.namespace is not None or each.task is not None for each in wants), 1),
    }
    for name, (count, limit) in amounts.items():
        if count > limit:
            raise TooLarge(f"then.{name}", f"must be at most {limit} in all claims of a request, not {count}")


async def extend(context: ServerContext, request: Request) -> Response:
    body = request.read(_extend)
    context.check_count("leases", body.leases)
    context.check_count("started", [place for each in body.leases for place in each.started])
    await context.check_leases(request, [], [each.token for each in body.leases])
    extensions = [read_extension(each) for each in body.leases]
    parts = parts_of(extensions, lambda _: 1, EXTEND_LIMIT)
    held = [each for part in parts for each in await context.broker.extend(part)]
    context.streams.extended(extensions, held)
    return reply(ExtendReply([write_held(each) for each in held]))


async def transact(context: ServerContext, request: Request) -> Response:
    body = request.read(_unit)
    context.check_count("settle", body.settle)
    context.check_count("acks", body.acks)
    context.check_count("push", body.push)
    context.check_count("leases", body.leases)
    if body.push:
        request.allow(PRODUCE, [each.queue for each in body.push if each.queue is not None])
    if body.acks:
        request.allow(CONSUME, [each.queue for each in body.acks])
    if body.settle or body.leases:
        await context.check_leases(request, [each.lane for each in body.settle], body.leases)
    unit = Unit(
        settlements=tuple(read_settlement(each) for each in body.settle),
        acks=tuple(read_ack(each) for each in body.acks),
        pushes=tuple(read_messages(context, request, body.push, None, "push")),
        refuse_duplicates=body.refuse_duplicates,
        leases=tuple(map(LeaseToken, body.leases)),
        nonce=request.nonce,
    )
    context.check_keys(unit.pushes)
    answer = await context.broker.transact(unit)
    if isinstance(answer, Undone):
        raise write_undone(answer)
    context.streams.settled(unit.settlements, answer.settled)
    return reply(write_done(answer))
