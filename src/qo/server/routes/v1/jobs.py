"""jobs: status, result with waiting, cancel."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from qo.core.errors import Closed, NotFound, TimedOut, TooLarge
from qo.core.message import MessageId, checked_id
from qo.core.names import checked_name
from qo.core.outcome import Job
from qo.server.context import ServerContext
from qo.server.request import Request, Response, reply
from qo.wire.jobs import (
    CANCEL_LIMIT,
    CancelBody,
    CanceledOne,
    CanceledReply,
    CancelQuery,
    EventsReply,
    FoundReply,
    JobBody,
    LookupBody,
    ResultQuery,
    write_job,
)
from qo.wire.operation import ACT, FOLLOW, LOOK

_lookup = msgspec.json.Decoder(LookupBody)
_cancel = msgspec.json.Decoder(CancelBody)


async def job(context: ServerContext, request: Request) -> Response:
    return reply(_shown(request, await _visible(context, request, _id(request))))


async def result(context: ServerContext, request: Request) -> Response:
    """200 and the job when it is finished, 202 and the job when it is not."""
    query = request.query(ResultQuery)
    id = _id(request)
    found = await _visible(context, request, id)
    if query.wait and found.state is not None and not found.state.finished:
        until = context.until(query.timeout_ms)
        with context.waiting(request), request.while_here():
            try:
                found = await context.broker.finished(id, until) or found
            except (TimedOut, Closed):  # its time is up, or this server's
                [now] = await context.broker.inspect.jobs([id])
                found = now or found
    finished = found.state is None or found.state.finished
    return reply(_shown(request, found), 200 if finished else 202)


async def lookup(context: ServerContext, request: Request) -> Response:
    ids = _ids(context, request.read(_lookup).ids)
    request.allow(FOLLOW, [])
    found = await context.broker.inspect.jobs(ids)
    seen = [each if each is not None and request.caller.sees(each.queue) else None for each in found]
    return reply(FoundReply([None if each is None else _shown(request, each) for each in seen]))


def _shown(request: Request, job: Job) -> JobBody:
    """A job as its caller may see it: who only pushes follows its state and result, not what was pushed by whom."""
    body = write_job(job)
    if request.caller.may(LOOK):
        return body
    return msgspec.structs.replace(body, payload=UNSET, payload_base64=UNSET, headers={})


async def events(context: ServerContext, request: Request) -> Response:
    id = _id(request)
    if request.caller.token is not None:
        await _visible(context, request, id)
    return reply(EventsReply(list(await context.broker.inspect.events(id))))


async def cancel(context: ServerContext, request: Request) -> Response:
    group = checked_name("group", request.query(CancelQuery).group)
    id = _id(request)
    request.allow(ACT, [])
    if request.caller.token is not None:
        await _visible(context, request, id)
    [answer] = await context.broker.admin.cancel([id], group, nonce=request.nonce)
    return reply(CanceledOne(answer))


async def cancel_many(context: ServerContext, request: Request) -> Response:
    body = request.read(_cancel)
    ids = _ids(context, body.ids)
    if len(ids) > CANCEL_LIMIT:
        raise TooLarge("ids", f"must be at most {CANCEL_LIMIT}, not {len(ids)}")
    request.allow(ACT, None)
    group = checked_name("group", body.group)
    answers = await context.broker.admin.cancel(ids, group, nonce=request.nonce) if ids else []
    return reply(CanceledReply(list(answers)))


def _id(request: Request) -> MessageId:
    return checked_id("id", request.path["id"])


def _ids(context: ServerContext, texts: list[str]) -> list[MessageId]:
    context.check_count("ids", texts)
    return [checked_id(f"ids[{number}]", text) for number, text in enumerate(texts)]


async def _visible(context: ServerContext, request: Request, id: MessageId) -> Job:
    """The job, if it is there and the caller may see its queue; both are the same to who may not."""
    request.allow(FOLLOW, [])
    [found] = await context.broker.inspect.jobs([id])
    if found is None or not request.caller.sees(found.queue):
        raise NotFound(f"nothing is known of job {request.path['id']} (any more)")
    return found
