"""push: messages into lanes, or into intake if they are not due yet."""

from __future__ import annotations

from datetime import timedelta
from operator import attrgetter

import msgspec

from qo.core.errors import QueueFull, TooLarge
from qo.core.message import Duplicate, MessageId, NewMessage, Pushed, Refused, Stored, repeats_in
from qo.stores.idempotency import batch_again, kept_batch, others_id, with_repeats, without
from qo.stores.sealing import sealed
from qo.stores.sqlite import dedupe, intake
from qo.stores.sqlite.inspect import unsettled
from qo.stores.sqlite.lanes import (
    Entry,
    Head,
    Lane,
    LaneName,
    append,
    append_plain,
    headers_text,
    lane_to_use,
    queue_to_use,
)
from qo.stores.sqlite.moments import micros, moment, span
from qo.stores.sqlite.places import row_of
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import QueueRow, Transaction

SQL = statements("push")

LaneKey = tuple[str, str | None, str | None, int | None]
Arrivals = dict[LaneKey, list[NewMessage]]
"""What is to be appended, by queue and lane."""
Content = tuple[str, str | None, bytes]
"""A queue, a key and a payload."""


def push_once(tx: Transaction, messages: tuple[NewMessage, ...], nonce: str | None) -> list[Pushed]:
    """Push, unless a batch with this nonce was pushed before; then give its answer again."""
    if nonce is None:
        return push(tx, messages)
    kept = tx.value(SQL.nonce, nonce)
    if kept is not None:
        return batch_again(messages, kept)
    answers = push(tx, messages)
    tx.run(SQL.keep_nonce, nonce, tx.now, kept_batch(messages, answers))
    return answers


def push(tx: Transaction, messages: tuple[NewMessage, ...]) -> list[Pushed]:
    """Judge each message, then append lane by lane: few statements for all of a lane."""
    repeats = repeats_in(messages)
    if repeats:
        return with_repeats(messages, repeats, push(tx, without(messages, repeats)))
    if _are_alike(messages) and not tx.careful and _push_alike(tx, messages):
        return [Stored(message.id) for message in messages]
    batch = Batch(tx)
    answers = [batch.judge(message) for message in messages]
    batch.enter()
    return answers


class Batch:
    """Messages that are pushed together: each is judged, then what may enter now enters, lane by lane."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._arrivals: Arrivals = {}
        self._adorned: set[LaneKey] = set()  # lanes to which more than payloads come
        self._on_the_way: set[MessageId] = set()
        self._growing: set[str] = set()  # queues to which something comes
        self._address: tuple[str, str | None, str, int] | None = None

    def judge(self, message: NewMessage) -> Pushed:
        tx = self._tx
        self._look_at(message)
        queue = self._queue
        if len(message.payload) > queue.settings.max_payload:
            return _too_large(queue, message)
        if self._amends or message.delay is not None:
            message = _amended(tx, queue, message)
        if message.dedupe is not None or message.due_at is not None or tx.careful:
            answer, entered = _settled_before_entry(tx, queue, message, self._on_the_way)
            if entered:
                if message.id in self._on_the_way:
                    self._growing.add(message.queue)
                return answer
        if message.headers is not None or message.ttl is not None or message.due_at is not None:
            self._adorned.add(self._lane)
        self._growing.add(message.queue)
        self._arrivals.setdefault(self._lane, []).append(message)  # lanes come into being in this order
        return Stored(message.id)

    def _look_at(self, message: NewMessage) -> None:
        """Where it goes: mostly where the one before went."""
        queue_name, key, kind, priority = address = message.queue, message.key, message.kind, message.priority
        if address != self._address:
            self._address = address
            self._queue = queue_to_use(self._tx, queue_name, message.new_queue)
            self._amends = self._queue.settings.encrypt or self._queue.settings.delay > NO_DELAY
            self._lane: LaneKey = (
                (queue_name, key, None, None) if key is not None else (queue_name, None, kind, priority)
            )

    def enter(self) -> None:
        tx = self._tx
        for lane, arriving in self._arrivals.items():
            queue = queue_to_use(tx, lane[0])
            _append(tx, queue, lane_to_use(tx, queue, LaneName(*lane[1:])), arriving, plain=lane not in self._adorned)
        for name in self._growing:
            _check_room(tx, queue_to_use(tx, name))


def _check_room(tx: Transaction, queue: QueueRow) -> None:
    """A push that makes a queue longer than it may be is undone as a whole."""
    limit = queue.settings.max_size
    if limit is not None and unsettled(tx, queue) > limit:
        raise QueueFull(f"queue '{queue.name}' is at its max capacity of {limit} messages (setting max_size)")


def _amended(tx: Transaction, queue: QueueRow, message: NewMessage) -> NewMessage:
    """A message as its queue wants it: due after the queue's delay, its payload sealed."""
    delay = queue.settings.delay if message.delay is None else message.delay
    if message.due_at is None and (delay or message.delay is not None):
        message = msgspec.structs.replace(message, due_at=moment(tx.now + span(delay)), delay=None)
    return sealed(message, tx.sealing_key()) if queue.settings.encrypt else message


_content_of = attrgetter("queue", "kind", "priority", "key", "headers", "due_at", "ttl", "dedupe", "new_queue", "delay")
_payload = attrgetter("payload")
NOTHING_MORE = (None,) * 7
NO_DELAY = timedelta(0)


def _are_alike(messages: tuple[NewMessage, ...]) -> bool:
    """Whether all go to one open lane and say nothing but their payload: the common batch, seen in one pass."""
    if not messages:
        return False
    first = _content_of(messages[0])
    if first[3:] != NOTHING_MORE:
        return False
    return len(messages) == 1 or all(map(first.__eq__, map(_content_of, messages)))


def _push_alike(tx: Transaction, messages: tuple[NewMessage, ...]) -> bool:
    """Append a batch of alike messages. Whether that could be done: all must be small enough, and live for ever."""
    first = messages[0]
    queue = queue_to_use(tx, first.queue)
    settings = queue.settings
    if settings.ttl is not None or settings.delay or settings.encrypt or settings.max_size is not None:
        return False
    if max(map(len, map(_payload, messages))) > settings.max_payload:
        return False
    append_plain(tx, queue, lane_to_use(tx, queue, LaneName(None, first.kind, first.priority)), messages)
    return True


def _settled_before_entry(
    tx: Transaction, queue: QueueRow, message: NewMessage, on_the_way: set[MessageId]
) -> tuple[Pushed, bool]:
    """What becomes of a message that may not enter a lane now, and whether that is all that becomes of it."""
    if message.dedupe is not None:
        first = dedupe.holder(tx, queue, message, on_the_way)
        if first is not None:
            return Duplicate(first), True
    known = _known(tx, message)
    if known is not None:
        return Stored(message.id) if known == (message.queue, message.key, message.payload) else OTHERS_ID, True
    on_the_way.add(message.id)
    if message.due_at is not None and micros(message.due_at) > tx.now:
        intake.delay(tx, queue, message, _expires_at(tx, queue, message))
        return Stored(message.id), True
    return Stored(message.id), False


def _append(tx: Transaction, queue: QueueRow, lane: Lane, messages: list[NewMessage], *, plain: bool) -> None:
    if lane.keyed:
        intake.enter_due_of_key(tx, queue, lane)
    if lane.keyed or queue.settings.ttl is not None or not plain:
        first = messages[0]
        head = Head(first.kind, first.priority, _expires_at(tx, queue, first), None)
        append(tx, queue, lane, [_columns(tx, queue, lane, message) for message in messages], head)
    else:
        append_plain(tx, queue, lane, messages)


def _columns(tx: Transaction, queue: QueueRow, lane: Lane, message: NewMessage) -> Entry:
    return (
        message.id,
        message.kind if lane.keyed else None,
        message.priority if lane.keyed else None,
        message.payload,
        headers_text(message.headers),
        tx.now,
        None if message.due_at is None else micros(message.due_at),
        _expires_at(tx, queue, message),
        None,
        None,
    )


def _too_large(queue: QueueRow, message: NewMessage) -> Refused:
    size, limit = len(message.payload), queue.settings.max_payload
    problem = f"has {size} bytes; queue '{queue.name}' allows {limit} (setting max_payload)"
    return Refused(TooLarge("payload", problem))


OTHERS_ID = Refused(others_id())


def _known(tx: Transaction, message: NewMessage) -> Content | None:
    """What is stored under this id: its queue, key and payload. Of a repeat, whose first answer was lost, the same."""
    row = row_of(tx, message.id)
    found = tx.row(SQL.in_intake, message.id) if row is None else tx.row(SQL.in_log, row)
    return None if found is None else (found[0], found[1], found[2])


def _expires_at(tx: Transaction, queue: QueueRow, message: NewMessage) -> int | None:
    """Time to live runs from the due time."""
    ttl = message.ttl or queue.settings.ttl
    due = tx.now if message.due_at is None else micros(message.due_at)
    return None if ttl is None else max(tx.now, due) + span(ttl)
