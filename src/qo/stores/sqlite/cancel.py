"""cancel: for one group, wherever the message is."""

from __future__ import annotations

from collections.abc import Sequence

from qo.core.lane import CursorState
from qo.core.message import MessageId
from qo.core.names import DEFAULT_GROUP
from qo.core.outcome import CancelAnswer, JobState
from qo.core.queue import History
from qo.stores.sqlite import outcomes
from qo.stores.sqlite.advance import lapse_whole, lease_over
from qo.stores.sqlite.cursors import Cursor, cursor_in, follow_retries, rest
from qo.stores.sqlite.leases import offsets_text
from qo.stores.sqlite.outcomes import Finish
from qo.stores.sqlite.places import row_of
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import QueueRow, Transaction

SQL = statements("cancel")
TIME = statements("advance")
INTAKE = statements("intake")


def cancel(tx: Transaction, ids: Sequence[MessageId], group: str) -> list[CancelAnswer]:
    return [_cancel(tx, id, group) for id in ids]


def _cancel(tx: Transaction, id: MessageId, group: str) -> CancelAnswer:
    waiting = tx.row(SQL.intake, id)
    if waiting is not None:
        return _cancel_intake(tx, id, tx.existing_queue(waiting[1]), group)
    row = row_of(tx, id)
    if row is None:
        return CancelAnswer.NOT_FOUND
    lane_id, offset, addressed_to, queue_name = tx.row(SQL.message, row) or ()
    queue = tx.existing_queue(queue_name)
    group_id = tx.group_id(queue, group)
    if group_id is None or addressed_to not in (None, group_id):
        return CancelAnswer.NOT_FOUND
    return _cancel_in_lane(tx, queue, lane_id, group_id, offset)


def _cancel_intake(tx: Transaction, id: MessageId, queue: QueueRow, group: str) -> CancelAnswer:
    """Cancel a message in intake, for every group: no group has seen it."""
    if group != DEFAULT_GROUP:
        return CancelAnswer.NOT_FOUND
    if queue.settings.history is History.NONE:
        tx.run(INTAKE.leave_intake, id)
    else:
        tx.run(SQL.cancel_intake, id, tx.now)
    if id in tx.watched:
        tx.finished.add(id)
    return CancelAnswer.CANCELED


def _cancel_in_lane(tx: Transaction, queue: QueueRow, lane_id: int, group_id: int, offset: int) -> CancelAnswer:
    cursor = cursor_in(tx, lane_id, group_id)
    assert cursor is not None
    lease = lease_over(tx, cursor, offset)
    if lease is not None and lease.expires_at <= tx.now:
        lapse_whole(tx, queue, lease)
        return _cancel_in_lane(tx, queue, lane_id, group_id, offset)
    if lease is not None:
        tx.run(SQL.flag, lease.token, lease.lane_id, offsets_text(lease.canceled | {offset}))
        return CancelAnswer.REQUESTED
    retry = tx.row(SQL.retry, cursor.id, offset)
    if retry is not None:
        tx.run(TIME.drop_retry, cursor.id, offset)
        follow_retries(tx, cursor.id)
        return _canceled(tx, queue, cursor, offset, retry[0])
    if offset < cursor.position or tx.row("SELECT 1 FROM skips WHERE cursor_id = ? AND offset = ?", cursor.id, offset):
        return CancelAnswer.FINISHED
    return _skip(tx, queue, cursor, offset)


def _skip(tx: Transaction, queue: QueueRow, cursor: Cursor, offset: int) -> CancelAnswer:
    """Not claimed yet: claims will pass it. A head is passed at once, its backoff and attempts with it."""
    tx.run(TIME.skip, cursor.id, offset)
    attempts = cursor.attempts if offset == cursor.position else 0
    if cursor.state is not CursorState.LEASED:
        blocked = cursor.due_at if cursor.state is CursorState.BLOCKED else None
        rest(tx, cursor, cursor.position, attempts=cursor.attempts, losses=cursor.losses, blocked_until=blocked)
        tx.hint(queue.name)
    return _canceled(tx, queue, cursor, offset, attempts)


def _canceled(tx: Transaction, queue: QueueRow, cursor: Cursor, offset: int, attempts: int) -> CancelAnswer:
    gone = Finish(offset, JobState.CANCELED, attempts, "canceled")
    outcomes.finish(tx, queue, cursor.group_id, cursor.lane.id, [gone])
    return CancelAnswer.CANCELED
