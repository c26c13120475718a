"""intake: messages that are stored but not yet in a lane.

They enter when due, in (due, id) order. The mover is whoever holds the
transaction: a claim brings in its queue's, a push to a keyed lane first brings
in that lane's.
"""

from __future__ import annotations

from itertools import groupby

from qo.core.message import NewMessage
from qo.stores.sqlite.lanes import Head, Lane, LaneName, append, headers_text, lane_to_use
from qo.stores.sqlite.moments import micros
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import QueueRow, Row, Transaction

SQL = statements("push")

ENTER_LIMIT = 1000


def delay(tx: Transaction, queue: QueueRow, message: NewMessage, expires_at: int | None) -> None:
    """Keep a message until it is due."""
    assert message.due_at is not None
    tx.run(
        SQL.delay, message.id, queue.id, message.key, message.kind, message.priority, message.payload,
        headers_text(message.headers), tx.now, micros(message.due_at), expires_at,
    )  # fmt: skip
    tx.hint(queue.name)


def enter_due(tx: Transaction, queue: QueueRow) -> bool:
    """Move what is due into its lanes, up to a limit. Whether more is due."""
    rows = tx.rows(SQL.due_of_queue, queue.id, tx.now, ENTER_LIMIT)
    for name, arrivals in groupby(rows, key=_lane_name):
        _enter(tx, queue, lane_to_use(tx, queue, name), list(arrivals))
    return len(rows) == ENTER_LIMIT


def enter_due_of_key(tx: Transaction, queue: QueueRow, lane: Lane) -> None:
    """Move all that is due for one key, so that a push comes after it."""
    while rows := tx.rows(SQL.due_of_key, queue.id, lane.key, tx.now, ENTER_LIMIT):
        _enter(tx, queue, lane, rows)


def _enter(tx: Transaction, queue: QueueRow, lane: Lane, rows: list[Row]) -> None:
    keyed = lane.keyed
    entries = [
        (id, kind if keyed else None, priority if keyed else None, *rest, None, None)
        for id, _, kind, priority, *rest in rows
    ]
    head = Head(rows[0][2], rows[0][3], rows[0][8], None)
    append(tx, queue, lane, entries, head)
    tx.many(SQL.leave_intake, [(row[0],) for row in rows])


def _lane_name(row: Row) -> LaneName:
    return LaneName.of(row[1], row[2], row[3])
