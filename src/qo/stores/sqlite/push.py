"""push: messages into lanes, or into intake if they are not due yet."""

from __future__ import annotations

from operator import attrgetter

from qo.core.errors import TooLarge
from qo.core.message import Duplicate, MessageId, NewMessage, Pushed, Refused, Stored
from qo.stores.answers import batch_again, kept_batch, others_id
from qo.stores.sqlite import dedupe, intake
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
from qo.stores.sqlite.moments import micros, span
from qo.stores.sqlite.places import row_of
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import QueueRow, Transaction

SQL = statements("push")

LaneKey = tuple[str, str | None, str | None, int | None]
Arrivals = dict[LaneKey, list[NewMessage]]
"""What is to be appended, by queue and lane."""


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
    if _are_alike(messages) and not tx.careful and _push_alike(tx, messages):
        return [Stored(message.id) for message in messages]
    answers: list[Pushed] = []
    arrivals: Arrivals = {}
    adorned: set[LaneKey] = set()  # lanes to which more than payloads come
    on_the_way: set[MessageId] = set()
    address = None
    for message in messages:
        queue_name, key, kind, priority = next_address = message.queue, message.key, message.kind, message.priority
        if next_address != address:  # mostly the same as the one before
            address = next_address
            queue = queue_to_use(tx, queue_name)
            limit = queue.settings.max_payload
            lane: LaneKey = (queue_name, key, None, None) if key is not None else (queue_name, None, kind, priority)
            arriving = arrivals.get(lane, [])
        if len(message.payload) > limit:
            answers.append(_too_large(queue, message))
            continue
        if message.dedupe is not None or message.due_at is not None or tx.careful:
            answer, entered = _settled_before_entry(tx, queue, message, on_the_way)
            if entered:
                answers.append(answer)
                continue
        if message.headers is not None or message.ttl is not None or message.due_at is not None:
            adorned.add(lane)
        if not arriving:
            arrivals[lane] = arriving  # lanes come into being in the order of their first arrivals
        arriving.append(message)
        answers.append(Stored(message.id))
    for lane, arriving in arrivals.items():
        queue = queue_to_use(tx, lane[0])
        _append(tx, queue, lane_to_use(tx, queue, LaneName(*lane[1:])), arriving, plain=lane not in adorned)
    return answers


_what_is_said = attrgetter("queue", "kind", "priority", "key", "headers", "due_at", "ttl", "dedupe")
_payload = attrgetter("payload")
NOTHING_MORE = (None,) * 5


def _are_alike(messages: tuple[NewMessage, ...]) -> bool:
    """Whether all go to one open lane and say nothing but their payload: the common batch, seen in one pass."""
    if not messages:
        return False
    first = _what_is_said(messages[0])
    if first[3:] != NOTHING_MORE:
        return False
    return len(messages) == 1 or all(map(first.__eq__, map(_what_is_said, messages)))


def _push_alike(tx: Transaction, messages: tuple[NewMessage, ...]) -> bool:
    """Append a batch of alike messages. Whether that could be done: all must be small enough, and live for ever."""
    first = messages[0]
    queue = queue_to_use(tx, first.queue)
    if queue.settings.ttl is not None or max(map(len, map(_payload, messages))) > queue.settings.max_payload:
        return False
    append_plain(tx, queue, lane_to_use(tx, queue, LaneName(None, first.kind, first.priority)), messages)
    return True


def _settled_before_entry(
    tx: Transaction, queue: QueueRow, message: NewMessage, on_the_way: set[MessageId]
) -> tuple[Pushed, bool]:
    """What becomes of a message that may not enter a lane now, and whether that is all that becomes of it."""
    if message.id in on_the_way:
        return Stored(message.id), True
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


def _known(tx: Transaction, message: NewMessage) -> tuple[str, str | None, bytes] | None:
    """What is stored under this id: its queue, key and payload. Of a repeat, whose first answer was lost, the same."""
    row = row_of(tx, message.id)
    found = tx.row(SQL.in_intake, message.id) if row is None else tx.row(SQL.in_log, row)
    return None if found is None else (found[0], found[1], found[2])


def _expires_at(tx: Transaction, queue: QueueRow, message: NewMessage) -> int | None:
    """Time to live runs from the due time."""
    ttl = message.ttl or queue.settings.ttl
    due = tx.now if message.due_at is None else micros(message.due_at)
    return None if ttl is None else max(tx.now, due) + span(ttl)
