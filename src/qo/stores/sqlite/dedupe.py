"""Who holds a dedupe key.

Settling never touches these rows: a push that meets a `unique` key looks whether
its holder is finished, and takes the key over. Housekeeping removes the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from qo.core.message import DedupeScope, MessageId, NewMessage
from qo.core.retention import CHECK_DEDUPE
from qo.stores.sqlite.advance import lapse_whole, lease_over
from qo.stores.sqlite.cursors import cursor_in
from qo.stores.sqlite.moments import span
from qo.stores.sqlite.places import row_of
from qo.stores.sqlite.statements import as_json, statements
from qo.stores.sqlite.transaction import QueueRow, Transaction

SQL = statements("dedupe")
PUSH = statements("push")

UNIQUE_CHECK_REST = span(CHECK_DEDUPE)
"""How long housekeeping leaves a unique key alone before it looks whether the holder is finished."""


class Holders:
    """Who holds the dedupe keys of a batch: read at once, and written at once."""

    def __init__(self, tx: Transaction, messages: Sequence[tuple[QueueRow, NewMessage]]) -> None:
        self._tx = tx
        self._holders: dict[tuple[int, str, str], tuple[MessageId, int | None]] = {}
        self._taken: dict[tuple[int, str, str], tuple[MessageId, int | None]] = {}
        self._on_the_way: set[MessageId] = set()
        for queue, keys in _keys_by_queue(messages).items():
            for scope, key, id, until in tx.rows(SQL.holders, queue, as_json(keys)):
                self._holders[queue, scope, key] = id, until

    def take(self, queue: QueueRow, message: NewMessage) -> MessageId | None:
        """The message that holds this one's key; None if it is free, and then this one holds it."""
        dedupe = message.dedupe
        assert dedupe is not None
        place = (queue.id, _scope(message), dedupe.key)
        holder = self._holders.get(place)
        if holder is not None and self._still_holds(queue, *holder):
            return holder[0]
        window = queue.settings.dedupe_window if dedupe.as_queue else dedupe.window
        until = None if window is None else self._tx.now + span(window)
        self._holders[place] = self._taken[place] = (message.id, until)
        self._on_the_way.add(message.id)
        return None

    def _still_holds(self, queue: QueueRow, id: MessageId, until: int | None) -> bool:
        if until is not None:
            return self._tx.now < until
        return id in self._on_the_way or not is_finished(self._tx, queue, id)

    def write(self) -> None:
        check = self._tx.now + UNIQUE_CHECK_REST
        rows = [(*place, id, until, check if until is None else until) for place, (id, until) in self._taken.items()]
        self._tx.many(SQL.hold_key, rows)


def _keys_by_queue(messages: Sequence[tuple[QueueRow, NewMessage]]) -> dict[int, list[tuple[str, str]]]:
    keys: dict[int, list[tuple[str, str]]] = {}
    for queue, message in messages:
        if message.dedupe is not None:
            keys.setdefault(queue.id, []).append((_scope(message), message.dedupe.key))
    return keys


def _scope(message: NewMessage) -> str:
    assert message.dedupe is not None
    if message.dedupe.scope is DedupeScope.QUEUE:
        return ""
    return f"key:{message.key}" if message.key is not None else f"open:{message.priority}:{message.kind}"


def exists(tx: Transaction, id: MessageId) -> bool:
    """Whether a message is stored still, settled or not."""
    return row_of(tx, id) is not None or tx.row(PUSH.in_intake, id) is not None


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
