"""Who holds a dedupe key.

Settling never touches these rows: a push that meets a `unique` key looks whether
its holder is finished, and takes the key over. Housekeeping removes the rest.
"""

from __future__ import annotations

from qo.core.message import DedupeScope, MessageId, NewMessage
from qo.core.retention import CHECK_DEDUPE
from qo.stores.sqlite.advance import lapse_whole, lease_over
from qo.stores.sqlite.lanes import cursor_in
from qo.stores.sqlite.moments import span
from qo.stores.sqlite.places import row_of
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import QueueRow, Transaction

SQL = statements("push")

UNIQUE_CHECK_REST = span(CHECK_DEDUPE)
"""How long housekeeping leaves a unique key alone before it looks whether the holder is finished."""


def holder(tx: Transaction, queue: QueueRow, message: NewMessage, on_the_way: set[MessageId]) -> MessageId | None:
    """The message that holds this one's key; None if it is free, and then this one holds it."""
    dedupe = message.dedupe
    assert dedupe is not None
    scope = _scope(message)
    window = queue.settings.dedupe_window if dedupe.as_queue else dedupe.window
    row = tx.row(SQL.dedupe_holder, queue.id, scope, dedupe.key)
    if row is not None:
        first: MessageId = row[0]
        until: int | None = row[1]
        held = tx.now < until if until is not None else first in on_the_way or not is_finished(tx, queue, first)
        if held:
            return first
    until = None if window is None else tx.now + span(window)
    check = until if until is not None else tx.now + UNIQUE_CHECK_REST
    tx.run(SQL.hold_key, queue.id, scope, dedupe.key, message.id, until, check)
    return None


def _scope(message: NewMessage) -> str:
    assert message.dedupe is not None
    if message.dedupe.scope is DedupeScope.QUEUE:
        return ""
    return f"key:{message.key}" if message.key is not None else f"open:{message.priority}:{message.kind}"


def exists(tx: Transaction, id: MessageId) -> bool:
    """Whether a message is stored still, settled or not."""
    return row_of(tx, id) is not None or tx.row(SQL.in_intake, id) is not None


def is_finished(tx: Transaction, queue: QueueRow, id: MessageId) -> bool:
    """Whether a message is completed, dead, canceled or removed, for the default group."""
    if tx.row(SQL.waits_in_intake, id):
        return False
    row = row_of(tx, id)
    if row is None:
        return True
    lane_id, offset, addressed_to = tx.row(SQL.place, row) or ()
    if addressed_to not in (None, queue.default_group_id):
        return True
    cursor = cursor_in(tx, lane_id, queue.default_group_id)
    assert cursor is not None
    lease = lease_over(tx, cursor, offset)
    if lease is not None and lease.expires_at <= tx.now:
        lapse_whole(tx, queue, lease)
        return is_finished(tx, queue, id)
    if lease is not None or tx.row(SQL.has_retry, cursor.id, offset):
        return False
    return offset < cursor.position or tx.row(SQL.is_skipped, cursor.id, offset) is not None
