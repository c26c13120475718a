"""push: messages into lanes, or into intake if they are not due yet."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from operator import attrgetter

import msgspec

from qo.core.errors import QueueFull, TooLarge
from qo.core.message import Duplicate, NewMessage, Pushed, Refused, Stored, repeats_in
from qo.stores.idempotency import batch_again, kept_batch, others_id, with_repeats, without
from qo.stores.sealing import sealed
from qo.stores.sqlite import intake
from qo.stores.sqlite.appending import Entry, append, append_keyed, append_plain, headers_text
from qo.stores.sqlite.dedupe import Holders
from qo.stores.sqlite.inspect import unsettled
from qo.stores.sqlite.lanes import Lane, LaneName, keyed_lanes_to_use, lane_to_use, lanes_to_use, queue_to_use
from qo.stores.sqlite.moments import micros, moment, span
from qo.stores.sqlite.places import row_of
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import QueueRow, Transaction

SQL = statements("push")

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
    """Judge each message, then store those that may be: few statements, however many lanes they go to."""
    repeats = repeats_in(messages)
    if repeats:
        return with_repeats(messages, repeats, push(tx, without(messages, repeats)))
    if not tx.careful and (_are_alike(messages) or _are_keyed(messages)) and _push_plain(tx, messages):
        return [Stored(message.id) for message in messages]
    batch = Batch(tx, messages)
    answers = batch.judge()
    batch.enter()
    return answers


class Batch:
    """Messages that are pushed together: each is judged, then what may enter now enters, and the rest waits."""

    def __init__(self, tx: Transaction, messages: tuple[NewMessage, ...]) -> None:
        self._tx = tx
        self._messages = _with_queues(tx, messages)
        self._holders = Holders(tx, self._messages)
        self._arriving: list[tuple[QueueRow, NewMessage]] = []
        self._delayed: list[tuple[QueueRow, NewMessage, int | None]] = []

    def judge(self) -> list[Pushed]:
        return [self._judge(queue, message) for queue, message in self._messages]

    def _judge(self, queue: QueueRow, message: NewMessage) -> Pushed:
        tx, settings = self._tx, queue.settings
        if len(message.payload) > settings.max_payload:
            return _too_large(queue, message)
        if message.delay is not None or settings.encrypt or settings.delay > NO_DELAY:
            message = _amended(tx, queue, message)
        if message.dedupe is not None:
            first = self._holders.take(queue, message)
            if first is not None:
                return Duplicate(first)
        if tx.careful:
            known = _known(tx, message)
            if known is not None:
                return Stored(message.id) if known == (message.queue, message.key, message.payload) else OTHERS_ID
        if message.due_at is not None and micros(message.due_at) > tx.now:
            self._delayed.append((queue, message, _expires_at(tx, queue, message)))
        else:
            self._arriving.append((queue, message))
        return Stored(message.id)

    def enter(self) -> None:
        tx = self._tx
        self._holders.write()
        if self._arriving:
            intake.check_not_waiting(tx, [message.id for _, message in self._arriving])
            append(tx, self._arrivals())
        if self._delayed:
            intake.delay(tx, self._delayed)
        growing = [queue for queue, _ in self._arriving] + [queue for queue, _, _ in self._delayed]
        for queue in _different(growing):
            _check_room(tx, queue)

    def _arrivals(self) -> list[tuple[QueueRow, Lane, Entry]]:
        """What enters, with its lane; what is due for the same keys has entered before it."""
        names = [LaneName.of(message.key, message.kind, message.priority) for _, message in self._arriving]
        wanted: dict[int, list[LaneName]] = {}
        for name, (queue, _) in zip(names, self._arriving, strict=True):
            wanted.setdefault(queue.id, []).append(name)
        lanes = {}
        for queue in _different(queue for queue, _ in self._arriving):
            lanes[queue.id] = lanes_to_use(self._tx, queue, wanted[queue.id])
            intake.enter_due_of_keys(self._tx, queue, lanes[queue.id].values())
        return [
            (queue, lanes[queue.id][name], _entry(self._tx, queue, message))
            for name, (queue, message) in zip(names, self._arriving, strict=True)
        ]


def _different(queues: Iterable[QueueRow]) -> Iterable[QueueRow]:
    return {queue.id: queue for queue in queues}.values()


def _with_queues(tx: Transaction, messages: tuple[NewMessage, ...]) -> list[tuple[QueueRow, NewMessage]]:
    """Each message with its queue; queues come into being in this order."""
    queues: dict[str, QueueRow] = {}
    found = []
    for message in messages:
        queue = queues.get(message.queue)
        if queue is None:
            queue = queues[message.queue] = queue_to_use(tx, message.queue, message.new_queue)
        found.append((queue, message))
    return found


def _entry(tx: Transaction, queue: QueueRow, message: NewMessage) -> Entry:
    ttl = message.ttl or queue.settings.ttl
    return (
        message.id,
        message.kind,
        message.priority,
        message.payload,
        None if message.headers is None else headers_text(message.headers),
        tx.now,
        None if message.due_at is None else micros(message.due_at),
        None if ttl is None else _expires_at(tx, queue, message),
        None,
        None,
    )


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


_said_of = attrgetter("queue", "headers", "due_at", "ttl", "dedupe", "new_queue", "delay")
_said_in_lane = attrgetter(
    "queue", "kind", "priority", "key", "headers", "due_at", "ttl", "dedupe", "new_queue", "delay"
)
_key = attrgetter("key")
_payload = attrgetter("payload")
NO_DELAY = timedelta(0)


def _are_alike(messages: tuple[NewMessage, ...]) -> bool:
    """Whether all go to one open lane and say nothing but their payload: the common batch, seen in one pass."""
    if not messages:
        return False
    first = _said_in_lane(messages[0])
    if first[3:] != (None,) * 7:
        return False
    return len(messages) == 1 or all(map(first.__eq__, map(_said_in_lane, messages)))


def _are_keyed(messages: tuple[NewMessage, ...]) -> bool:
    """Whether all go to keyed lanes of one queue and say no more than kind, priority and payload."""
    if not messages or messages[0].key is None:
        return False
    first = _said_of(messages[0])
    return (
        first[1:] == (None,) * 6 and all(map(first.__eq__, map(_said_of, messages))) and None not in map(_key, messages)
    )


def _push_plain(tx: Transaction, messages: tuple[NewMessage, ...]) -> bool:
    """Append a batch that goes to one open lane, or to keyed lanes. Whether that could be done: all must be small
    enough, and live for ever.
    """
    first = messages[0]
    queue = queue_to_use(tx, first.queue)
    settings = queue.settings
    if settings.ttl is not None or settings.delay or settings.encrypt or settings.max_size is not None:
        return False
    if max(map(len, map(_payload, messages))) > settings.max_payload:
        return False
    intake.check_not_waiting(tx, [message.id for message in messages])
    if first.key is None:
        append_plain(tx, queue, lane_to_use(tx, queue, LaneName(None, first.kind, first.priority)), messages)
        return True
    lanes = keyed_lanes_to_use(tx, queue, map(_key, messages))
    intake.enter_due_of_keys(tx, queue, lanes.values())
    append_keyed(tx, queue, lanes, messages)
    return True


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
