"""push: one message or many."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

import msgspec

from qo.core.errors import Invalid
from qo.core.message import PRODUCER, MessageId, NewMessage, Pushed, Refused, Stored, id_text
from qo.server.context import ServerContext
from qo.server.request import Request, Response, reply
from qo.wire.messages import BatchBody, MessageBody, PushBody, PushReply, read_message, write_pushed
from qo.wire.operation import PRODUCE

_push = msgspec.json.Decoder(PushBody)
_batch = msgspec.json.Decoder(BatchBody)
_message = msgspec.json.Decoder(MessageBody)
_REST = tuple(name for name in MessageBody.__struct_fields__)
NOTHING_ELSE = PushBody()
CREATED = HTTPStatus.CREATED.value
STORED = b'{"answer":"stored","id":"%s"}'
"""The commonest answer of all."""


async def push(context: ServerContext, request: Request) -> Response:
    body = request.read(_push)
    if body.messages is None:
        return await _push_one(context, request, body)
    others = [name for name in _REST if getattr(body, name) != getattr(NOTHING_ELSE, name)]
    if others:
        raise Invalid(others[0], "belongs to a message, inside of `messages`")
    return await _push_all(context, request, body.messages, request.queue)


async def push_anywhere(context: ServerContext, request: Request) -> Response:
    bodies = request.read(_batch).messages
    request.allow(PRODUCE, [body.queue for body in bodies if body.queue is not None])
    return await _push_all(context, request, bodies, None)


async def submit(context: ServerContext, request: Request) -> Response:
    return await _push_one(context, request, request.read(_message))


async def _push_one(context: ServerContext, request: Request, body: MessageBody) -> Response:
    broker = context.broker
    message = read_message(body, request.queue, broker.new_id())
    if request.caller.subject is not None:
        message = stamped(message, request.caller.subject)
    [answer] = await broker.push([message], request.nonce)
    if answer.__class__ is Stored:
        return Response(CREATED, STORED % id_text(answer.id).encode())
    if isinstance(answer, Refused):
        raise answer.error
    return reply(write_pushed([answer])[0], HTTPStatus.CREATED)


async def _push_all(
    context: ServerContext, request: Request, bodies: Sequence[MessageBody], queue: str | None
) -> Response:
    context.check_count("messages", bodies)
    messages = read_messages(context, request, bodies, queue)
    answers = await _pushed(context, messages, request.nonce) if messages else []
    refused = any(isinstance(answer, Refused) for answer in answers)
    return reply(PushReply(write_pushed(answers)), HTTPStatus.OK if refused else HTTPStatus.CREATED)


async def _pushed(context: ServerContext, messages: Sequence[NewMessage], nonce: str | None) -> Sequence[Pushed]:
    """In one commit, if a nonce stands for all of them."""
    if nonce is None:
        return await context.broker.push_in_parts(messages)
    context.check_keys(messages)
    return await context.broker.push(messages, nonce)


def stamped(message: NewMessage, producer: str | None) -> NewMessage:
    """The message with who pushed it, if that is known."""
    if producer is None:
        return message
    return msgspec.structs.replace(message, headers={**(message.headers or {}), PRODUCER: producer})


def read_messages(
    context: ServerContext, request: Request, bodies: Sequence[MessageBody], queue: str | None, field: str = "messages"
) -> list[NewMessage]:
    ids = context.broker.new_ids(len(bodies))
    read: list[NewMessage] = []
    try:
        for body, id in zip(bodies, ids, strict=True):
            read.append(read_message(body, queue, id))
    except Invalid as error:
        raise type(error)(f"{field}[{len(read)}].{error.field}", error.problem) from None
    if any(body.id is not None for body in bodies):
        _check_ids(read, field)
    if request.caller.subject is not None:
        return [stamped(each, request.caller.subject) for each in read]
    return read


def _check_ids(messages: Sequence[NewMessage], field: str) -> None:
    """A message may be said twice, but no two may have one id."""
    seen: dict[MessageId, tuple[str, str | None, bytes]] = {}
    for each in messages:
        content = each.queue, each.key, each.payload
        if seen.setdefault(each.id, content) != content:
            raise Invalid(field, "two of them have the same id")
