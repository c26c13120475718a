"""intake: messages that are stored but not yet in a lane.

They enter when due, in (due, id) order. The mover is whoever holds the
transaction: a claim brings in its queue's, a push to a keyed lane first brings
in that lane's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qo.core.message import NewMessage, runs_of_ids
from qo.stores.sqlite.appending import append, headers_text
from qo.stores.sqlite.lanes import Lane, LaneName, lanes_to_use
from qo.stores.sqlite.moments import micros
from qo.stores.sqlite.places import Repeated, check_new
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import QueueRow, Row, Transaction

SQL = statements("intake")

ENTER_LIMIT = 1000


def delay(tx: Transaction, messages: Sequence[tuple[QueueRow, NewMessage, int | None]]) -> None:
    """Keep messages until they are due; each comes with its queue and the end of its time to live."""
    rows = []
    for queue, message, expires_at in messages:
        assert message.due_at is not None
        rows.append((
            message.id, queue.id, message.key, message.kind, message.priority, message.payload,
            headers_text(message.headers), tx.now, micros(message.due_at), expires_at,
        ))  # fmt: skip
    check_new(tx, [row[0] for row in rows])
    tx.many(SQL.delay, rows)
    tx.hints.update(queue.name for queue, _, _ in messages)


def check_not_waiting(tx: Transaction, ids: Sequence[bytes]) -> None:
    """Raise `Repeated` if one of these is in intake."""
    if tx.row(SQL.any_waiting) and any(tx.row(SQL.waiting_between, *run[:2]) for run in runs_of_ids(ids)):
        raise Repeated


def enter_due(tx: Transaction, queue: QueueRow) -> bool:
    """Move what is due into its lanes, up to a limit. Whether more is due."""
    rows = tx.rows(SQL.due_of_queue, queue.id, tx.now, ENTER_LIMIT)
    names = [LaneName.of(*row[1:4]) for row in rows]
    lanes = lanes_to_use(tx, queue, names)
    _enter(tx, queue, [lanes[name] for name in names], rows)
    return len(rows) == ENTER_LIMIT


def enter_due_of_keys(tx: Transaction, queue: QueueRow, lanes: Iterable[Lane]) -> None:
    """Move all that is due for these keys, so that a push comes after it."""
    if tx.row(SQL.any_due, queue.id, tx.now) is None:
        return
    for lane in lanes:
        while lane.keyed and (rows := tx.rows(SQL.due_of_key, queue.id, lane.key, tx.now, ENTER_LIMIT)):
            _enter(tx, queue, [lane] * len(rows), rows)


def _enter(tx: Transaction, queue: QueueRow, lanes: Sequence[Lane], rows: Sequence[Row]) -> None:
    append(tx, [(queue, lane, (row[0], *row[2:], None, None)) for lane, row in zip(lanes, rows, strict=True)])
    tx.many(SQL.leave_intake, [row[:1] for row in rows])
