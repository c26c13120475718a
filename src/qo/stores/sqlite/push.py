"""push: messages into lanes, or into intake if they are not due yet."""

from __future__ import annotations

import msgspec

from qo.core.errors import TooLarge
from qo.core.message import Duplicate, MessageId, NewMessage, Pushed, Refused, Stored
from qo.stores.sqlite import dedupe, intake
from qo.stores.sqlite.lanes import Entry, LaneName, append, headers_text, lane_to_use, queue_to_use
from qo.stores.sqlite.moments import id_bytes, id_text, micros, span
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import QueueRow, Transaction

SQL = statements("push")

Arrivals = dict[tuple[str, LaneName], list[Entry]]
"""What is to be appended, by queue and lane."""


class Remembered(msgspec.Struct):
    """A batch's answer as the nonce keeps it: each id, and whether it was a duplicate."""

    pushed: list[tuple[str, bool]]


def push_once(tx: Transaction, messages: tuple[NewMessage, ...], nonce: str | None) -> list[Pushed]:
    """Push, unless a batch with this nonce was pushed before; then give its answer again."""
    if nonce is None:
        return push(tx, messages)
    kept = tx.value(SQL.nonce, nonce)
    if kept is not None:
        return _recalled(messages, msgspec.json.decode(kept, type=Remembered))
    answers = push(tx, messages)
    remembered = Remembered([("" if isinstance(a, Refused) else a.id, isinstance(a, Duplicate)) for a in answers])
    tx.run(SQL.keep_nonce, nonce, tx.now, msgspec.json.encode(remembered).decode())
    return answers


def _recalled(messages: tuple[NewMessage, ...], remembered: Remembered) -> list[Pushed]:
    answers: list[Pushed] = []
    for message, (id, duplicate) in zip(messages, remembered.pushed, strict=True):
        if not id:
            answers.append(Refused(TooLarge("payload", "was refused the first time")))
        else:
            answers.append(Duplicate(MessageId(id)) if duplicate else Stored(message.id))
    return answers


def push(tx: Transaction, messages: tuple[NewMessage, ...]) -> list[Pushed]:
    """Judge each message, then append lane by lane: one statement for all of a lane."""
    answers: list[Pushed] = []
    arrivals: Arrivals = {}
    on_the_way: set[bytes] = set()
    for message in messages:
        queue = queue_to_use(tx, message.queue)
        verdict = _judge(tx, queue, message, on_the_way)
        answers.append(verdict)
        if isinstance(verdict, Stored) and not (tx.careful and _is_repeat(tx, message)):
            _place(tx, queue, message, arrivals)
    for (queue_name, lane_name), entries in arrivals.items():
        queue = queue_to_use(tx, queue_name)
        lane = lane_to_use(tx, queue, lane_name)
        if lane.keyed:
            intake.enter_due_of_key(tx, queue, lane)
        append(tx, queue, lane, entries)
    return answers


def _judge(tx: Transaction, queue: QueueRow, message: NewMessage, on_the_way: set[bytes]) -> Pushed:
    if len(message.payload) > queue.settings.max_payload:
        limit = queue.settings.max_payload
        problem = f"has {len(message.payload)} bytes; queue '{queue.name}' allows {limit} (setting max_payload)"
        return Refused(TooLarge("payload", problem))
    if message.dedupe is not None:
        first = dedupe.holder(tx, queue, message, on_the_way)
        if first is not None:
            return Duplicate(id_text(first))
        on_the_way.add(id_bytes(message.id))
    return Stored(message.id)


def _is_repeat(tx: Transaction, message: NewMessage) -> bool:
    """Whether this very message is stored already: its producer did not hear the first answer."""
    return tx.row(SQL.known_id, id_bytes(message.id)) is not None


def _place(tx: Transaction, queue: QueueRow, message: NewMessage, arrivals: Arrivals) -> None:
    due = None if message.due_at is None else micros(message.due_at)
    ttl = message.ttl or queue.settings.ttl
    expires = None if ttl is None else max(tx.now, due or 0) + span(ttl)
    entry = Entry(
        id_bytes(message.id),
        message.kind,
        message.priority,
        message.payload,
        headers_text(message.headers) if message.headers else None,
        tx.now,
        due,
        expires,
    )
    if due is not None and due > tx.now:
        intake.delay(tx, queue, message.key, entry, due)
    else:
        name = LaneName.of(message.key, message.kind, message.priority)
        arrivals.setdefault((queue.name, name), []).append(entry)
