"""Where groups stand in lanes: reading cursors, and bringing them to rest."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from qo.core.lane import CursorState
from qo.core.queue import WINDOW_FULL
from qo.stores.sqlite.lanes import Lane
from qo.stores.sqlite.statements import as_json, statements
from qo.stores.sqlite.transaction import Row, Transaction

SQL = statements("cursors")


STATES = {state.value: state for state in CursorState}


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


def read_cursor(row: Row) -> Cursor:
    """From `cursor_of(c, l)`."""
    id, group_id, state, *rest = row[:8]
    return Cursor(id, Lane(*row[8:]), group_id, STATES[state], *rest)


def cursor_in(tx: Transaction, lane_id: int, group_id: int) -> Cursor | None:
    row = tx.row(SQL.cursor_in, lane_id, group_id)
    return None if row is None else read_cursor(row)


def cursor_by_id(tx: Transaction, cursor_id: int) -> Cursor:
    row = tx.row(SQL.cursor_by_id, cursor_id)
    assert row is not None
    return read_cursor(row)


class Rest(NamedTuple):
    """A cursor that no keyed lease holds, on its way to rest: from where on, and how the message there stands.

    skips   whether it may have any
    """

    cursor: Cursor
    position: int
    attempts: int = 0
    losses: int = 0
    blocked_until: int | None = None
    skips: bool = True


class Head(NamedTuple):
    """The message that a cursor comes to stand at."""

    offset: int
    kind: str | None
    priority: int | None
    entered_at: int
    expires_at: int | None
    group_id: int | None


def rest(
    tx: Transaction,
    cursor: Cursor,
    position: int,
    *,
    attempts: int = 0,
    losses: int = 0,
    blocked_until: int | None = None,
) -> None:
    """Bring one cursor to rest."""
    rest_all(tx, (Rest(cursor, position, attempts, losses, blocked_until),))


def rest_all(tx: Transaction, coming: Collection[Rest]) -> None:
    """Bring cursors to rest, each at the first message that it may deliver.

    Skips, and messages addressed to another group, are passed. Attempts, losses
    and a backoff belong to the message at `position` and end when it is passed. A head
    that was not tried yet is held back for its queue's window.
    """
    heads = _heads(tx, [each for each in coming if each.position < each.cursor.lane.tail])
    keyed: list[tuple[object, ...]] = []
    opened: list[tuple[object, ...]] = []
    passed = []
    for each in coming:
        head = heads.get(each.cursor.id)
        if head is not None and (each.skips or head.group_id is not None):
            head = _first_deliverable(tx, each.cursor, head)
        reached = each.cursor.lane.tail if head is None else head.offset
        if each.skips:
            passed.append((each.cursor.id, reached))
        (keyed if each.cursor.lane.keyed else opened).append(_at_rest(tx, each, head))
    if passed:
        tx.many(SQL.forget_skips, passed)
    if keyed:
        tx.many(SQL.rest, keyed)
    if opened:
        tx.many(SQL.rest_open, opened)


def _heads(tx: Transaction, coming: list[Rest]) -> dict[int, Head]:
    """The messages at these positions, or the first that are left behind them, by cursor."""
    if not coming:
        return {}
    places = [(cursor.id, cursor.lane.id, max(position, cursor.lane.first)) for cursor, position, *_ in coming]
    return {row[0]: Head(*row[1:]) for row in tx.rows(SQL.heads, as_json(places))}


def _first_deliverable(tx: Transaction, cursor: Cursor, head: Head | None) -> Head | None:
    while head is not None:
        if head.group_id in (None, cursor.group_id) and not tx.row(SQL.is_skipped, cursor.id, head.offset):
            break
        row = tx.row(SQL.head, cursor.lane.id, head.offset + 1)
        head = None if row is None else Head(*row)
    return head


def _at_rest(tx: Transaction, coming: Rest, head: Head | None) -> tuple[object, ...]:
    """How a cursor rests: the columns of `SQL.rest`, or of `SQL.rest_open`, which are the first of them."""
    cursor, position, attempts, losses, blocked_until, _ = coming
    lane = cursor.lane
    if head is None:
        at_rest: tuple[object, ...] = (cursor.id, CursorState.IDLE, lane.tail, None, lane.kind, lane.priority)
        return (*at_rest, 0, 0, None) if lane.keyed else at_rest
    if head.offset != position:
        attempts, losses, blocked_until = 0, 0, None
    if cursor.hold and not attempts and not losses and lane.tail - head.offset < WINDOW_FULL:
        blocked_until = max(blocked_until or 0, head.entered_at + cursor.hold)
    state = CursorState.BLOCKED if blocked_until is not None and blocked_until > tx.now else CursorState.READY
    if not lane.keyed:
        return cursor.id, state, head.offset, head.entered_at, lane.kind, lane.priority
    due = blocked_until if state is CursorState.BLOCKED else head.expires_at
    return cursor.id, state, head.offset, head.entered_at, head.kind, head.priority, attempts, losses, due


def follow_retries(tx: Transaction, cursor_id: int) -> None:
    """An open cursor is due when the first of its waiting retries is."""
    tx.run(SQL.follow_retries, cursor_id)
