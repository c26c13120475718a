"""Pushing, and what is answered."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from qo.core.durations import duration
from qo.core.errors import Invalid
from qo.core.message import (
    Dedupe,
    DedupeScope,
    Duplicate,
    MessageId,
    NewMessage,
    Pushed,
    Refused,
    Stored,
    check_own_headers,
    checked_id,
    id_text,
)
from qo.core.names import DEFAULT_KIND
from qo.wire.content import Json, packed, unpacked
from qo.wire.kinds import Base64, Delay, Id, Key, Name, Priority, Seconds
from qo.wire.problems import Problem, error_of, problem_of


class DedupeBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A key under which only one message is accepted: for a window, or until the first one is finished.

    `as_queue`: for as long as the queue's setting dedupe_window says.
    """

    key: Key
    window_seconds: Seconds | None = None
    scope: DedupeScope = DedupeScope.QUEUE
    as_queue: bool = False


class MessageBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One message to push: a payload as JSON, or other bytes as base64, and what else is said about it."""

    payload: Json = UNSET
    payload_base64: Base64 | UnsetType = UNSET
    queue: Name | None = None
    id: Id | None = None
    kind: Name = DEFAULT_KIND
    key: Key | None = None
    priority: Priority = 0
    headers: dict[str, str] | None = None
    delay_seconds: Delay | None = None
    due_at: datetime | None = None
    ttl_seconds: Seconds | None = None
    dedupe: str | DedupeBody | None = None


class PushBody(MessageBody, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One message; or `messages`, and then nothing else."""

    messages: list[MessageBody] | None = None


class BatchBody(msgspec.Struct, forbid_unknown_fields=True):
    """Many messages, stored in one commit."""

    messages: list[MessageBody]


class PushAnswer(StrEnum):
    STORED = "stored"
    DUPLICATE = "duplicate"
    REFUSED = "refused"


class PushedBody(msgspec.Struct, omit_defaults=True):
    """What became of one message. A duplicate's id is that of the first one; a refused one says why."""

    answer: PushAnswer
    id: str | None = None
    problem: Problem | None = None


class PushReply(msgspec.Struct):
    messages: list[PushedBody]


def read_message(body: MessageBody, queue: str | None, id: MessageId) -> NewMessage:
    """Check a message and turn it into what the store takes."""
    payload = unpacked("payload", body.payload, body.payload_base64)
    name = queue if body.queue is None else body.queue
    if name is None:
        raise Invalid("queue", "is required")
    if queue is not None and name != queue:
        raise Invalid("queue", f"is '{name}', but the path says '{queue}'")
    if body.id is not None:
        id = checked_id("id", body.id)
    if body.headers is not None:
        check_own_headers(body.headers)
    if body.delay_seconds is None and body.due_at is None and body.ttl_seconds is None and body.dedupe is None:
        return NewMessage(id, name, payload, body.kind, body.key, body.priority, body.headers)
    return NewMessage(
        id,
        name,
        payload,
        body.kind,
        body.key,
        body.priority,
        body.headers,
        due_at=body.due_at,
        delay=_delay(body),
        ttl=None if body.ttl_seconds is None else duration("ttl_seconds", body.ttl_seconds),
        dedupe=_dedupe(body.dedupe),
    )


def _delay(body: MessageBody) -> timedelta | None:
    """A length as it is: from when on it counts is for the store's clock to say."""
    if body.delay_seconds is None:
        return None
    if body.due_at is not None:
        raise Invalid("delay_seconds", "give a delay or a due time, not both")
    if body.delay_seconds < 0:
        raise Invalid("delay_seconds", "must not be negative")
    return duration("delay_seconds", body.delay_seconds)


def _dedupe(body: str | DedupeBody | None) -> Dedupe | None:
    if body is None:
        return None
    if isinstance(body, str):
        return Dedupe(body)
    window = None if body.window_seconds is None else duration("dedupe.window_seconds", body.window_seconds)
    return Dedupe(body.key, window, body.scope, body.as_queue)


def write_message(message: NewMessage) -> MessageBody:
    if message.new_queue is not None:
        raise Invalid("new_queue", "cannot be sent to a server; configure the queue first")
    payload, encoded = packed(message.payload, message.headers)
    dedupe = message.dedupe
    return MessageBody(
        payload=payload,
        payload_base64=encoded,
        queue=message.queue,
        id=id_text(message.id),
        kind=message.kind,
        key=message.key,
        priority=message.priority,
        headers=None if message.headers is None else dict(message.headers),
        due_at=message.due_at,
        delay_seconds=None if message.delay is None else message.delay.total_seconds(),
        ttl_seconds=None if message.ttl is None else message.ttl.total_seconds(),
        dedupe=None if dedupe is None else _dedupe_body(dedupe),
    )


def _dedupe_body(dedupe: Dedupe) -> DedupeBody:
    window = None if dedupe.window is None else dedupe.window.total_seconds()
    return DedupeBody(dedupe.key, window, dedupe.scope, dedupe.as_queue)


def write_pushed(answers: Sequence[Pushed]) -> list[PushedBody]:
    return [_pushed_body(each) for each in answers]


def _pushed_body(answer: Pushed) -> PushedBody:
    if isinstance(answer, Refused):
        return PushedBody(PushAnswer.REFUSED, problem=problem_of(answer.error))
    return PushedBody(PushAnswer.STORED if isinstance(answer, Stored) else PushAnswer.DUPLICATE, id_text(answer.id))


def read_pushed(bodies: Sequence[PushedBody]) -> list[Pushed]:
    return [_pushed(body) for body in bodies]


def _pushed(body: PushedBody) -> Pushed:
    if body.answer is PushAnswer.REFUSED:
        error = None if body.problem is None else error_of(body.problem)
        return Refused(error if isinstance(error, Invalid) else Invalid("message", "was refused"))
    id = checked_id("id", body.id or "")
    return Stored(id) if body.answer is PushAnswer.STORED else Duplicate(id)
