"""What a user says when pushing, turned into a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

import msgspec

from qo.client.payload import RAW, encoded, encoded_quickly, marked
from qo.core.durations import Length, duration
from qo.core.errors import Invalid
from qo.core.message import Dedupe, MessageId, NewMessage, check_own_headers
from qo.core.names import DEFAULT_KIND


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message to push.

    payload   anything that JSON can say, or bytes
    kind      the name of the task that handles it
    key       messages of one key are delivered in strict order
    priority  -100 to 100, higher first
    delay     not before so long from now (a timedelta, or seconds)
    due_at    not before that time; give this or a delay
    dedupe    a key that holds until the first one is finished, or a `Dedupe`
    headers   text by name
    ttl       canceled if not delivered so long after it was due
    """

    payload: Any
    kind: str = DEFAULT_KIND
    key: str | None = None
    priority: int = 0
    delay: Length | None = None
    due_at: datetime | None = None
    dedupe: str | Dedupe | None = None
    headers: Mapping[str, str] | None = None
    ttl: Length | None = None

    def addressed(self, queue: str, id: MessageId) -> NewMessage:
        """Check it and turn it into what the store takes."""
        payload, headers = self.payload, self.headers
        if headers is not None:
            check_own_headers(headers)
        if isinstance(payload, RAW):
            payload, headers = marked(payload, headers)
        else:
            payload = encoded("payload", payload)
        if self.delay is None and self.due_at is None and self.ttl is None and self.dedupe is None:
            return NewMessage(id, queue, payload, self.kind, self.key, self.priority, headers)
        return NewMessage(
            id,
            queue,
            payload,
            self.kind,
            self.key,
            self.priority,
            headers,
            due_at=self.due_at,
            delay=None if self.delay is None else self._delay(self.delay),
            ttl=None if self.ttl is None else duration("ttl", self.ttl),
            dedupe=Dedupe(self.dedupe) if isinstance(self.dedupe, str) else self.dedupe,
        )

    def _delay(self, given: Length) -> timedelta:
        """A length as it is: from when on it counts is for the store's clock to say."""
        delay = duration("delay", given)
        if delay < timedelta(0):
            raise Invalid("delay", f"must not be negative, not {given}")
        return delay


_options = attrgetter("kind", "key", "priority", "delay", "due_at", "dedupe", "headers", "ttl")
_payload = attrgetter("payload")
NO_MORE = (None,) * 5


def addressed(batch: Sequence[Message], queue: str, ids: Sequence[MessageId]) -> list[NewMessage]:
    """Check messages and turn them into what the store takes; quickly, if they differ in their payloads alone."""
    payloads = _plain_payloads(batch)
    if payloads is None:
        return [message.addressed(queue, id) for message, id in zip(batch, ids, strict=True)]
    kind, key, priority = batch[0].kind, batch[0].key, batch[0].priority
    return [NewMessage(id, queue, payload, kind, key, priority) for id, payload in zip(ids, payloads, strict=True)]


def _plain_payloads(batch: Sequence[Message]) -> list[bytes] | None:
    """The payloads as JSON, if that and one kind, key and priority is all that the messages say."""
    if not batch:
        return None
    first = _options(batch[0])
    if first[3:] != NO_MORE or not all(map(first.__eq__, map(_options, batch))):
        return None
    return encoded_quickly(list(map(_payload, batch)))
