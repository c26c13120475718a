"""stream: deliveries as Server-Sent Events, as they come."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from datetime import datetime, timedelta

import msgspec

from qo.core.errors import Invalid, QoError, Unauthenticated
from qo.core.held import released
from qo.core.lease import CLAIM_LIMIT, Claimed, Delivered, Nothing, Want
from qo.core.message import check_priority
from qo.server.context import ServerContext
from qo.server.request import Receive, Request, Send, Streaming, WhileHere
from qo.server.streams import Stream
from qo.wire.claims import StreamQuery, WantBody, read_want, write_deliveries
from qo.wire.operation import CONSUME

STREAM_WAIT = timedelta(hours=1)
COMMENT_SECONDS = 15
"""A comment is sent after so long without a message, so that nobody in between takes the line for dead."""
STREAM_BYTES = 2 * 1024 * 1024
"""Of one claim for a stream: while it is sent, the next one is made already."""

log = logging.getLogger("qo.server")

_encode = msgspec.json.Encoder().encode


async def stream(context: ServerContext, request: Request) -> Streaming:
    terms = request.query(StreamQuery)
    body = WantBody(
        queues=[request.queue],
        group=terms.group,
        start=terms.start,
        key=terms.key,
        owner=terms.owner,
        messages=terms.messages,
        lease_seconds=terms.lease_seconds,
        auto_settle=terms.auto_settle,
        max_bytes=STREAM_BYTES,
    )
    if not 1 <= terms.window <= CLAIM_LIMIT:
        raise Invalid("window", f"must be from 1 to {CLAIM_LIMIT}, not {terms.window}")
    read_want(body, "checked before the first byte of the answer")
    check_priority(terms.priority)
    context.check_room(request)
    context.check_streams(request)

    async def run(receive: Receive, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        with context.waiting(request):
            stream = context.open_stream(request, terms.window)
            try:
                await _begin(send, headers)
                with WhileHere(receive):
                    await _go_on(context, request, stream, body, terms, send)
            except QoError as error:
                log.warning("a stream ended: %s", error, extra={"request_id": request.id})
            finally:
                context.streams.close(stream)
        await send({"type": "http.response.body", "body": b""})

    return Streaming(run)


async def _begin(send: Send, headers: list[tuple[bytes, bytes]]) -> None:
    about = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), *headers]
    await send({"type": "http.response.start", "status": 200, "headers": about})
    await send({"type": "http.response.body", "body": b": qo\n\n", "more_body": True})


async def _go_on(
    context: ServerContext, request: Request, stream: Stream, body: WantBody, terms: StreamQuery, send: Send
) -> None:
    broker = context.broker
    while not context.streams.stopping:
        await _check(context, request)
        now = broker.store_now()
        room = stream.room(now)
        if room <= 0:
            await _wait_for_room(stream, now, send)  # the next round checks the token
            continue
        body.messages = min(terms.messages, room)
        want = context.limited(read_want(body, secrets.token_hex(16)))
        answer = await _claim(context, request, want, terms.priority, send)
        answer = await context.still_theirs(request, [request.queue], answer)
        if isinstance(answer, Claimed):
            if not terms.auto_settle:
                context.streams.sent(stream, answer.deliveries)
            await _tell(context, answer.deliveries, send, terms)


async def _check(context: ServerContext, request: Request) -> None:
    """A token that was good when the stream began may be over by now."""
    caller = await context.authenticator.identify(request.headers)
    caller.check(CONSUME, [request.queue])


async def _claim(context: ServerContext, request: Request, want: Want, priority: int, send: Send) -> Claimed | Nothing:
    """Wait for as long as it takes, with a comment now and then: the store is not asked for these."""
    until = context.broker.now() + STREAM_WAIT
    claim = asyncio.ensure_future(context.broker.claim_or_wait(want, until, priority))
    try:
        while not claim.done():
            await asyncio.wait([claim], timeout=COMMENT_SECONDS)
            if not claim.done() and not await context.authenticator.is_still(request.caller, request.headers):
                raise Unauthenticated("the token of this stream is over")
            if not claim.done():
                await _send_comment(send)
    except BaseException:
        claim.cancel()  # what it has taken already goes to someone else
        await asyncio.gather(claim, return_exceptions=True)
        raise
    return claim.result()


async def _wait_for_room(stream: Stream, now: datetime, send: Send) -> None:
    stream.freed.clear()
    over = stream.held.next_expiry_at()
    rest = COMMENT_SECONDS if over is None else min(COMMENT_SECONDS, (over - now).total_seconds())
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stream.freed.wait(), max(rest, 0.001))
        return
    await _send_comment(send)


async def _tell(context: ServerContext, deliveries: tuple[Delivered, ...], send: Send, terms: StreamQuery) -> None:
    """Send them; what could not be sent is given back."""
    events = b"".join(
        b"event: message\nid: %s\ndata: %s\n\n" % (each.id.encode(), _on_lines(_encode(each)))
        for each in write_deliveries(deliveries)
    )
    try:
        await send({"type": "http.response.body", "body": events, "more_body": True})
    except asyncio.CancelledError:
        if not terms.auto_settle:
            await context.broker.settle(released(deliveries))
        raise


def _on_lines(data: bytes) -> bytes:
    """A line's end is white space in JSON, and the end of a field in an event."""
    return data.replace(b"\r", b" ").replace(b"\n", b"\ndata: ")


async def _send_comment(send: Send) -> None:
    await send({"type": "http.response.body", "body": b": \n\n", "more_body": True})
