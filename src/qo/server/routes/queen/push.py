"""configure and push; and queues that are deleted."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from qo.core.access import Scope
from qo.core.errors import Invalid, shortened
from qo.core.message import (
    PRODUCER,
    TRACE,
    TRANSACTION,
    Dedupe,
    DedupeScope,
    Duplicate,
    MessageId,
    NewMessage,
    Pushed,
    Refused,
    id_text,
)
from qo.core.names import KEY_LIMIT, NAME_LIMIT, checked_key, checked_name, namespace_and_task
from qo.core.queue import QueueSettings
from qo.server.context import ServerContext
from qo.server.request import Request, Response, reply
from qo.server.router import Route
from qo.wire.operation import ADMIN, PRODUCE
from qo.wire.queen.bodies import ConfigureBody, PushBody, PushItem, PushResult
from qo.wire.queen.names import DEFAULT_PARTITION
from qo.wire.queen.options import PUSHED, changes_of, merged, options_of

BINARY = b"application/x-queen-push"
BOTH = frozenset({Scope.PRODUCE}), frozenset({Scope.CONSUME})
CREATED = 201

_configure = msgspec.json.Decoder(ConfigureBody)
_push = msgspec.json.Decoder(PushBody)


def allow_both(request: Request, queues: Sequence[str] | None) -> None:
    """Who may read and write."""
    for scopes in BOTH:
        request.allow(scopes, queues)


async def configure(context: ServerContext, request: Request) -> Response:
    body = request.read(_configure)
    name = checked_name("queue", body.queue)
    allow_both(request, [name])
    given = body.options or {}
    names = {key: getattr(body, key) for key in ("namespace", "task") if getattr(body, key) is not msgspec.UNSET}
    if request.caller.is_limited and not _says_the_same(name, names):
        request.allow(ADMIN, [name])  # consumers of that namespace or task would get what is pushed here

    def change(known: QueueSettings | None) -> Mapping[str, Any]:
        if known is not None and request.caller.has_own_token:
            request.allow(ADMIN, [name])
        options = merged(given, known, replace=body.mode == "replace")
        return {**changes_of(options, None if body.mode == "replace" else known), **names}

    info = await context.broker.wires.reconfigure(name, change)
    return reply(
        {
            "configured": True,
            "queueId": name,
            "queue": name,
            "namespace": info.namespace,
            "task": info.task,
            "options": options_of(info.settings),
        }
    )


def _says_the_same(queue: str, given: Mapping[str, str | None]) -> bool:
    """Whether a namespace and task that are given are those that the queue's name says."""
    said = dict(zip(("namespace", "task"), namespace_and_task(queue), strict=True))
    return all(value is None or value == said[name] for name, value in given.items())


def allow_seek(request: Request, queues: Sequence[str] | None) -> None:
    """Moving a group is an operator's: with a token of ours; a JWT's roles mean what they mean to Queen."""
    if request.caller.has_own_token:
        request.allow(ADMIN, queues)
    else:
        allow_both(request, queues)


async def delete(context: ServerContext, request: Request) -> Response:
    existed = await context.broker.admin.delete_queue(checked_name("queue", request.queue))
    return reply({"deleted": existed, "queue": request.queue, "existed": existed})


async def push(context: ServerContext, request: Request) -> Response:
    check_not_binary(request)
    items = request.read(_push).items
    context.check_count("items", items)
    request.allow(PRODUCE, [item.queue for item in items])
    read = read_items(context, request, items)
    messages = [each for each in read if isinstance(each, NewMessage)]
    stored = iter(await context.broker.push_in_parts(messages))
    answers = [next(stored) if isinstance(each, NewMessage) else Refused(each) for each in read]
    return reply([_result(*each) for each in enumerate(zip(items, read, answers, strict=True))], CREATED)


def check_not_binary(request: Request) -> None:
    if request.headers.get(b"content-type", b"").startswith(BINARY):
        raise Invalid("content-type", "the binary push body is not supported; send JSON")


def read_items(context: ServerContext, request: Request, items: Sequence[PushItem]) -> list[NewMessage | Invalid]:
    """Each as a message, or what is wrong with it."""
    ids = context.broker.new_ids(len(items))
    producer = request.caller.producer
    return [_read(item, id, producer) for item, id in zip(items, ids, strict=True)]


def _read(item: PushItem, id: MessageId, producer: str | None) -> NewMessage | Invalid:
    name = item.transactionId or str(uuid.uuid4())
    headers = {TRANSACTION: name}
    try:
        if item.traceId:
            headers[TRACE] = checked_key("traceId", item.traceId)
        if producer is not None:
            headers[PRODUCER] = producer
        return NewMessage(
            id,
            item.queue,
            bytes(item.payload),
            key=item.partition or DEFAULT_PARTITION,
            headers=headers,
            dedupe=Dedupe(name, scope=DedupeScope.LANE, as_queue=True),
            new_queue=PUSHED,
        )
    except Invalid as error:
        return error


def name_of(message: NewMessage) -> str:
    return (message.headers or {})[TRANSACTION]


def _result(index: int, said: tuple[PushItem, NewMessage | Invalid, Pushed]) -> PushResult:
    item, message, answer = said
    name = name_of(message) if isinstance(message, NewMessage) else item.transactionId
    if isinstance(answer, Refused):
        return PushResult(
            index=index,
            message_id=None,
            transaction_id=None if name is None else shortened(name, KEY_LIMIT),
            queueName=shortened(item.queue, NAME_LIMIT),
            status="failed",
            error=str(answer.error),
        )
    return PushResult(
        index=index,
        message_id=id_text(answer.id),
        transaction_id=name,
        queueName=item.queue,
        status="duplicate" if isinstance(answer, Duplicate) else "queued",
    )


ROUTES = [
    Route(
        method="POST",
        path="/api/v1/configure",
        name="queen_configure",
        summary="Create a queue, or change its options.",
        handle=configure,
        scopes=PRODUCE,
        decides=True,
    ),
    Route(
        method="DELETE",
        path="/api/v1/resources/queues/{queue*}",
        name="queen_delete_queue",
        summary="Remove a queue and all that is in it.",
        handle=delete,
    ),
    Route(
        method="POST",
        path="/api/v1/push",
        name="queen_push",
        summary="Push messages.",
        handle=push,
        scopes=PRODUCE,
        decides=True,
        large=True,
    ),
]
