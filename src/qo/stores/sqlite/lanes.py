"""Queues, lanes and cursors coming into being, messages entering lanes, and cursors coming to rest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from qo.core.lane import CursorState, Filter, Start, StartAt
from qo.core.message import NewMessage
from qo.core.names import DEFAULT_GROUP
from qo.core.outcome import JobState
from qo.core.queue import WINDOW_FULL, History, QueueSettings
from qo.core.retention import TIDY_AFTER
from qo.stores.sqlite.moments import micros, moment, span
from qo.stores.sqlite.places import place
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import QueueRow, Row, Transaction, widened

SQL = statements("lanes")
APPEND_PLAIN = widened(SQL.append_plain, shared=4)

_id, _payload = attrgetter("id"), attrgetter("payload")

TIDY_REST = span(TIDY_AFTER)
"""A lane that changed is looked at by housekeeping a minute later, not sooner."""


@dataclass(slots=True)
class Lane:
    """A lane's row. `kind` and `priority` are an open lane's; a keyed one has a key instead."""

    id: int
    key: str | None
    kind: str | None
    priority: int | None
    first: int
    tail: int
    entered_at: int

    @property
    def keyed(self) -> bool:
        return self.key is not None

    def enters_at(self, now: int) -> int:
        """The time of entry never runs backwards in a lane, whatever the clock does."""
        return max(now, self.entered_at)


Entry = tuple[bytes, str | None, int | None, bytes, str | None, int, int | None, int | None, int | None, bytes | None]
"""A message about to enter a lane, as columns: id, kind, priority, payload, headers, created_at, due_at, expires_at,
group_id, retry_of. Kind and priority are None where the lane has them."""


class Head(NamedTuple):
    """What a cursor needs to know of the first message that it wakes for."""

    kind: str
    priority: int
    expires_at: int | None
    group_id: int | None


class LaneName(NamedTuple):
    """A lane's identity within its queue: by key, or by kind and priority."""

    key: str | None
    kind: str | None
    priority: int | None

    @classmethod
    def of(cls, key: str | None, kind: str, priority: int) -> LaneName:
        return cls(key, None, None) if key is not None else cls(None, kind, priority)


def queue_to_use(tx: Transaction, name: str, new: QueueSettings | None = None) -> QueueRow:
    """The queue of that name, created with these settings, or the default ones, if there is none."""
    return tx.queue(name) or create_queue(tx, name, new or QueueSettings())


def create_queue(tx: Transaction, name: str, given: QueueSettings) -> QueueRow:
    settings = given.sealed_from(tx.time)
    namespace, task = settings.names(name)
    queue_id = tx.insert(SQL.create_queue, name, namespace, task, settings_text(settings), tx.now)
    create_group(tx, queue_id, DEFAULT_GROUP, Start())
    for group, *rule, start_at, start_time in tx.rows(SQL.filters):
        if group != DEFAULT_GROUP and Filter(*rule).matches(namespace, task):
            start = Start(StartAt(start_at), None if start_time is None else moment(start_time))
            if tx.value("SELECT 1 FROM groups WHERE queue_id = ? AND name = ?", queue_id, group) is None:
                create_group(tx, queue_id, group, start)
    tx.hint(name)
    queue = tx.queue(name)
    assert queue is not None
    return queue


def create_group(tx: Transaction, queue_id: int, name: str, start: Start) -> int:
    time = None if start.time is None else micros(start.time)
    return tx.insert(SQL.create_group, queue_id, name, start.at, time, tx.now)


def find_lane(tx: Transaction, queue: QueueRow, name: LaneName) -> Lane | None:
    if name.key is not None:
        row = tx.row(SQL.keyed_lane, queue.id, name.key)
    else:
        row = tx.row(SQL.open_lane, queue.id, name.kind, name.priority)
    return None if row is None else Lane(row[0], name.key, name.kind, name.priority, *row[1:])


def lane_to_use(tx: Transaction, queue: QueueRow, name: LaneName) -> Lane:
    """The lane of that name, created with a cursor for every group if there is none."""
    lane = find_lane(tx, queue, name)
    if lane is None:
        lane_id = tx.insert(SQL.create_lane, queue.id, *name, tx.now + TIDY_REST)
        lane = Lane(lane_id, *name, 0, 0, 0)
        tx.run(SQL.create_cursors, lane_id, int(lane.keyed), queue.id, span(queue.settings.window))
    return lane


def append(tx: Transaction, queue: QueueRow, lane: Lane, entries: Sequence[Entry], head: Head) -> None:
    """Give the entries the lane's next offsets, in order, and wake the cursors that had nothing to do."""
    entered = lane.enters_at(tx.now)
    ids = [entry[0] for entry in entries]
    place(tx, lane.id, lane.tail, ids)
    tx.many(SQL.append, [(lane.id, offset, entered, *entry) for offset, entry in enumerate(entries, lane.tail)])
    _grown(tx, queue, lane, ids, head)


def append_plain(tx: Transaction, queue: QueueRow, lane: Lane, messages: Sequence[NewMessage]) -> None:
    """The same for messages that say nothing but their payload, in fewer and wider statements."""
    ids: list[bytes] = list(map(_id, messages))
    own = ids * 2
    own[::2], own[1::2] = ids, map(_payload, messages)
    place(tx, lane.id, lane.tail, ids)
    shared = (lane.id, lane.tail, lane.enters_at(tx.now), tx.now)
    tx.run_wide(APPEND_PLAIN, shared, own, len(messages), step=1)
    _grown(tx, queue, lane, ids, Head(messages[0].kind, messages[0].priority, None, None))


def _grown(tx: Transaction, queue: QueueRow, lane: Lane, ids: Sequence[bytes], head: Head) -> None:
    lane.tail += len(ids)
    lane.entered_at = lane.enters_at(tx.now)
    tx.run(SQL.grow, lane.id, lane.tail, lane.entered_at, tx.now + TIDY_REST)
    if lane.keyed:
        tx.run(
            SQL.wake_keyed, lane.id, head.kind, head.priority, lane.entered_at, head.expires_at, head.group_id,
            tx.now, lane.tail, WINDOW_FULL,
        )  # fmt: skip
        if queue.settings.window:
            tx.run(SQL.wake_full, lane.id, lane.tail, WINDOW_FULL)
    else:
        tx.run(SQL.wake_open, lane.id, head.kind, head.priority, lane.entered_at, head.group_id)
    tx.hint(queue.name)
    if queue.settings.history is History.FULL:
        record_events(tx, ids, JobState.QUEUED, "entered its lane")


class Cursor(NamedTuple):
    """A cursor's row, with what a verb needs of its lane."""

    id: int
    lane: Lane
    group_id: int
    state: CursorState
    position: int
    attempts: int
    losses: int
    due_at: int | None
    hold: int


CURSOR_COLUMNS = (
    "c.id, c.group_id, c.state, c.position, c.attempts, c.losses, c.due_at, c.hold, "
    "l.id, l.key, l.kind, l.priority, l.first, l.tail, l.entered_at"
)


def read_cursor(row: Row) -> Cursor:
    """From CURSOR_COLUMNS, in their order."""
    id, group_id, state, position, attempts, losses, due_at, hold, *lane = row
    return Cursor(id, Lane(*lane), group_id, CursorState(state), position, attempts, losses, due_at, hold)


_CURSOR = f"SELECT {CURSOR_COLUMNS} FROM cursors c JOIN lanes l ON l.id = c.lane_id"


def cursor_in(tx: Transaction, lane_id: int, group_id: int) -> Cursor | None:
    row = tx.row(f"{_CURSOR} WHERE c.lane_id = ? AND c.group_id = ?", lane_id, group_id)
    return None if row is None else read_cursor(row)


def cursor_by_id(tx: Transaction, cursor_id: int) -> Cursor:
    row = tx.row(f"{_CURSOR} WHERE c.id = ?", cursor_id)
    assert row is not None
    return read_cursor(row)


def rest(
    tx: Transaction,
    cursor: Cursor,
    position: int,
    *,
    attempts: int = 0,
    losses: int = 0,
    blocked_until: int | None = None,
) -> None:
    """Bring a cursor that no keyed lease holds to rest at the first deliverable message from `position` on.

    Skips, and messages addressed to another group, are passed. Attempts, losses
    and a backoff belong to the message at `position` and end when it is passed. A head
    that was not tried yet is held back for its queue's window.
    """
    head = _next_head(tx, cursor, position)
    if head is None:
        attempts = losses = 0
        state, kind, priority, entered, expires = CursorState.IDLE, None, None, None, None
        reached = cursor.lane.tail
    else:
        reached, kind, priority, entered, expires, _ = head
        if reached != position:
            attempts, losses, blocked_until = 0, 0, None
        if cursor.hold and not attempts and not losses and cursor.lane.tail - reached < WINDOW_FULL:
            blocked_until = max(blocked_until or 0, entered + cursor.hold)
        state = CursorState.BLOCKED if blocked_until is not None and blocked_until > tx.now else CursorState.READY
    tx.run(SQL.forget_skips, cursor.id, reached)
    if cursor.lane.keyed:
        due = blocked_until if state is CursorState.BLOCKED else expires
        tx.run(SQL.rest, cursor.id, state, reached, attempts, losses, kind, priority, entered, due)
    else:
        lane = cursor.lane
        tx.run(SQL.rest_open, cursor.id, state, reached, entered, lane.kind, lane.priority)


def _next_head(tx: Transaction, cursor: Cursor, position: int) -> Row | None:
    head = tx.row(SQL.head, cursor.lane.id, position)
    while head is not None:
        if head[5] in (None, cursor.group_id) and not tx.row(SQL.is_skipped, cursor.id, head[0]):
            break
        head = tx.row(SQL.head, cursor.lane.id, head[0] + 1)
    return head


def follow_retries(tx: Transaction, cursor_id: int) -> None:
    """An open cursor is due when the first of its waiting retries is."""
    tx.run(SQL.follow_retries, cursor_id)


def record_events(tx: Transaction, ids: Sequence[bytes], state: JobState, detail: str) -> None:
    """Write an event for each; only for queues whose history is full."""
    tx.many(
        """INSERT INTO events (message_id, at, number, state, detail)
           VALUES (?1, ?2, (SELECT count(*) FROM events WHERE message_id = ?1 AND at = ?2), ?3, ?4)""",
        [(id, tx.now, state, detail) for id in ids],
    )


def headers_text(headers: object) -> str | None:
    return json.dumps(headers) if headers else None


def settings_text(settings: QueueSettings) -> str:
    return json.dumps(settings.overrides())
