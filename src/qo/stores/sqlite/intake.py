"""intake: messages that are stored but not yet in a lane.

They enter when due, in (due, id) order. The mover is whoever holds the
transaction: a claim brings in its queue's, a push to a keyed lane first brings
in that lane's.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from qo.stores.sqlite.lanes import Entry, Lane, LaneName, append, lane_to_use
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import QueueRow, Transaction

SQL = statements("push")

ENTER_LIMIT = 1000


def delay(tx: Transaction, queue: QueueRow, key: str | None, entry: Entry, due: int) -> None:
    tx.run(SQL.delay, entry.id, queue.id, key, *entry[1:6], due, entry.expires_at)
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


def _enter(tx: Transaction, queue: QueueRow, lane: Lane, rows: list[tuple[Any, ...]]) -> None:
    append(tx, queue, lane, [Entry(row[0], *row[2:]) for row in rows])
    tx.many(SQL.leave_intake, [(row[0],) for row in rows])


def _lane_name(row: tuple[Any, ...]) -> LaneName:
    return LaneName.of(row[1], row[2], row[3])
