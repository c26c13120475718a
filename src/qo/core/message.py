"""A message: what was pushed. It never changes.

These values are msgspec structs, not dataclasses, because they are built once
per message on the hot path (docs/decisions/0003-msgspec-values.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, NewType
from uuid import UUID

import msgspec

from qo.core.durations import Length, duration
from qo.core.errors import Invalid, TooLarge, not_one_of, shortened
from qo.core.moments import checked_time
from qo.core.names import DEFAULT_KIND, checked_key, checked_name, known_names
from qo.core.queue import QueueSettings

MessageId = NewType("MessageId", bytes)
"""The 16 bytes of a UUIDv7; text only where people see it (`id_text`). Ids of one batch sort in its order."""

PRIORITY_LIMIT = 100
ECHO_LIMIT = 100
HEADER_COUNT_LIMIT = 64
HEADER_BYTES_LIMIT = 16 * 1024

OWN_PREFIX = "qo-"
"""Headers whose names begin so are set by qo alone."""
TRANSACTION, TRACE, PRODUCER, SEALED = "qo-transaction", "qo-trace", "qo-producer", "qo-sealed"
"""A message's name in its lane; a trace it belongs to; who pushed it; the key that its payload is sealed with."""

CONTENT_TYPE = "content-type"
BYTES_CONTENT = "application/octet-stream"


def message_ids(milliseconds: int, entropy: int, count: int) -> list[MessageId]:
    """UUIDv7 ids for one call: the time, random bits, and a counter that starts at random and counts up.

    Counting keeps the ids of a batch in its order, and the store's index
    append-only. `entropy` has 73 random bits; the counter's top bit starts as
    0, so that it does not overflow.
    """
    counter = entropy & 0x7FFFFFFFFFFF
    rest = entropy >> 47
    version, variant = 0x7000 | rest >> 14 & 0xFFF, 0x8000 | rest & 0x3FFF
    prefix = milliseconds.to_bytes(6) + version.to_bytes(2) + variant.to_bytes(2)
    return [prefix + number.to_bytes(6) for number in range(counter, counter + count)]  # type: ignore[misc]


def runs_of_ids(ids: Sequence[bytes]) -> list[tuple[bytes, bytes, int]]:
    """Ids that count up one by one, as (first, last, how many). The ids of one call make one run."""
    count = len(ids)
    if _is_one_run(ids, count):
        return [(ids[0], ids[-1], count)]
    numbers = [int.from_bytes(id) for id in ids]
    starts = [0, *(at for at in range(1, count) if numbers[at] != numbers[at - 1] + 1), count]
    return [(ids[start], ids[end - 1], end - start) for start, end in pairwise(starts)]


def _is_one_run(ids: Sequence[bytes], count: int) -> bool:
    """So many different ids, in order, from the first to the last: there is no room for a gap."""
    if int.from_bytes(ids[-1]) - int.from_bytes(ids[0]) != count - 1:
        return False
    return len(set(ids)) == count and sorted(ids) == ids


def id_text(id: MessageId) -> str:
    """An id as people write it."""
    text = id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def checked_id(field: str, value: str) -> MessageId:
    """Read an id in any spelling that a UUID has."""
    try:
        return MessageId(UUID(value).bytes)
    except (ValueError, AttributeError, TypeError):
        raise Invalid(field, f"must be a UUID, not {shortened(str(value), ECHO_LIMIT)!r}") from None


class DedupeScope(StrEnum):
    """Where a dedupe key holds."""

    QUEUE = "queue"
    LANE = "lane"


class Dedupe(msgspec.Struct, frozen=True):
    """A key under which only one message is accepted.

    With a window it holds for that long after the push; without, until the
    first message is finished for the default group. `as_queue` leaves the window to
    the queue's setting `dedupe_window`. In the scope of a lane the key is also a
    name by which the message is found, as long as it exists.
    """

    key: str
    window: timedelta | None = None
    scope: DedupeScope = DedupeScope.QUEUE
    as_queue: bool = False

    if TYPE_CHECKING:  # the window is kept as a timedelta, and may be given in other ways

        def __init__(
            self, key: str, window: Length | None = ..., scope: DedupeScope = ..., as_queue: bool = ...
        ) -> None: ...

    def __post_init__(self) -> None:
        checked_key("dedupe.key", self.key)
        if self.window is not None:
            if type(self.window) is not timedelta:
                msgspec.structs.force_setattr(self, "window", duration("dedupe.window", self.window))
            if self.window <= timedelta(0):
                raise Invalid("dedupe.window", "must be greater than 0, or None: until the first is finished")
        if self.as_queue and self.window is not None:
            raise Invalid("dedupe.window", "is the queue's, or given here; not both")
        if self.scope not in (DedupeScope.QUEUE, DedupeScope.LANE):
            raise not_one_of("dedupe.scope", self.scope, DedupeScope)


class NewMessage(msgspec.Struct, frozen=True, gc=False):
    """A message on its way to the store. Its id is given by the caller, so a push can be told apart from its repeat.

    `new_queue` is how its queue is set up if this push creates it; None: with the defaults.
    `delay` is how long after its push it is due: a length, because the store's clock decides. Give it, or `due_at`.
    """

    id: MessageId
    queue: str
    payload: bytes
    kind: str = DEFAULT_KIND
    key: str | None = None
    priority: int = 0
    headers: Mapping[str, str] | None = None
    due_at: datetime | None = None
    ttl: timedelta | None = None
    dedupe: Dedupe | None = None
    new_queue: QueueSettings | None = None
    delay: timedelta | None = None

    def __post_init__(self) -> None:
        if self.queue not in known_names:
            checked_name("queue", self.queue)
        if self.kind not in known_names:
            checked_name("kind", self.kind)
        if self.key is not None:
            checked_key("key", self.key)
        if self.priority != 0:
            check_priority(self.priority)
        if self.headers is not None or self.due_at is not None or self.ttl is not None or self.dedupe is not None:
            self._check_adornments()
        if self.delay is not None:
            self._check_delay()

    def _check_adornments(self) -> None:
        if self.headers is not None:
            check_headers(self.headers)
        if self.ttl is not None and self.ttl <= timedelta(0):
            raise Invalid("ttl", "must be greater than 0")
        if self.due_at is not None:
            check_due_at(self.due_at)
        if self.dedupe is not None and not isinstance(self.dedupe, Dedupe):
            raise Invalid("dedupe", f"must be text or a qo.Dedupe, not {type(self.dedupe).__name__}")

    def _check_delay(self) -> None:
        if self.due_at is not None:
            raise Invalid("delay", "give a delay or a due time, not both")
        if type(self.delay) is not timedelta or self.delay < timedelta(0):
            raise Invalid("delay", f"must be a timedelta that is not negative, not {self.delay}")


def check_due_at(due_at: datetime) -> None:
    checked_time("due_at", due_at)


def check_priority(priority: int) -> None:
    if type(priority) is not int or abs(priority) > PRIORITY_LIMIT:
        raise Invalid(
            "priority", f"must be a whole number from -{PRIORITY_LIMIT} to {PRIORITY_LIMIT}, not {priority!r}"
        )


def check_headers(headers: Mapping[str, str]) -> None:
    if not isinstance(headers, Mapping):
        raise Invalid("headers", f"must map text to text, not be a {type(headers).__name__}")
    if len(headers) > HEADER_COUNT_LIMIT:
        raise TooLarge("headers", f"at most {HEADER_COUNT_LIMIT} are allowed, not {len(headers)}")
    size = 0
    for name, value in headers.items():
        if not name or {type(name), type(value)} != {str}:
            raise Invalid("headers", f"must map text to text; {name!r} does not")
        size += len(name) + len(value)
    if size > HEADER_BYTES_LIMIT:
        raise TooLarge("headers", f"must have at most {HEADER_BYTES_LIMIT} characters in all, not {size}")


def check_own_headers(headers: Mapping[str, str] | None) -> None:
    """Refuse what a user may not say of a message."""
    for name in headers or ():
        if str(name).startswith(OWN_PREFIX):
            raise Invalid("headers", f"'{name}' begins with '{OWN_PREFIX}', which is for qo itself")


class Stored(msgspec.Struct, frozen=True, gc=False):
    """The message is in its lane or in intake, and will survive anything."""

    id: MessageId


class Duplicate(msgspec.Struct, frozen=True, gc=False):
    """Its dedupe key is held by an earlier message, whose id this is."""

    id: MessageId


class Refused(msgspec.Struct, frozen=True):
    """This message alone was not stored; the error says why."""

    error: Invalid


Pushed = Stored | Duplicate | Refused


def repeats_in(messages: Sequence[NewMessage]) -> Mapping[int, int]:
    """Which messages of a batch have the id of an earlier one: their numbers, each with that of the first.

    A later message of a batch with the same id is refused, unless it is a repeat of the first.
    """
    if len({message.id for message in messages}) == len(messages):
        return {}
    firsts: dict[MessageId, int] = {}
    numbered = enumerate(messages)
    return {number: first for number, each in numbered if (first := firsts.setdefault(each.id, number)) != number}


def is_same_message(one: NewMessage, other: NewMessage) -> bool:
    """Whether two messages under one id are one message, said twice."""
    return (one.queue, one.key, one.payload) == (other.queue, other.key, other.payload)
