"""groups: joining a queue, moving within it, leaving it."""

from __future__ import annotations

from collections.abc import Sequence

from qo.core.errors import Invalid, NotFound
from qo.core.lane import Filter, Start, StartAt
from qo.core.lease import QUEUES_LIMIT
from qo.core.names import DEFAULT_GROUP
from qo.stores.sqlite.advance import lapse_lost
from qo.stores.sqlite.cursors import cursor_in, rest
from qo.stores.sqlite.lanes import TIDY_REST, create_group, queue_to_use
from qo.stores.sqlite.moments import micros, span
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import QueueRow, Row, Transaction

SQL = statements("groups")


def join(tx: Transaction, queue: QueueRow, group: str, start: Start) -> int:
    """Register a group and give it a cursor in every lane. `new` is each lane's tail."""
    _check_start(tx, start)
    group_id = create_group(tx, queue.id, group, start)
    tx.run(SQL.join_lanes, queue.id, group_id, span(queue.settings.window))
    if start.at is not StartAt.NEW:
        for lane in tx.rows(SQL.lanes_with_messages, queue.id):
            _stand_at(tx, lane, group_id, start)
    tx.hint(queue.name)
    return group_id


def _check_start(tx: Transaction, start: Start) -> None:
    if start.time is not None and micros(start.time) > tx.now:
        raise Invalid("start", "must not be in the future; 'new' starts at now")


def create(tx: Transaction, where: Sequence[str] | Filter, group: str, start: Start) -> bool:
    """Register a group in queues, created if need be, or through a filter. The first registration wins."""
    if group == DEFAULT_GROUP:
        return False
    made = False
    names: Sequence[str] = _note_filter(tx, where, group, start) if isinstance(where, Filter) else where
    for name in names:
        queue = queue_to_use(tx, name)
        if tx.group_id(queue, group) is None:
            join(tx, queue, group, start)
            made = True
    return made


def _note_filter(tx: Transaction, where: Filter, group: str, start: Start) -> list[str]:
    note_filter(tx, where, group, start)
    return matching(tx, where)


def note_filter(tx: Transaction, where: Filter, group: str, start: Start) -> None:
    """Have the group join matching queues as they appear."""
    if not tx.row(SQL.has_filter, group, where.namespace, where.task):
        _check_start(tx, start)
        time = None if start.time is None else micros(start.time)
        tx.run(SQL.add_filter, group, where.namespace, where.task, start.at, time)


def drop_filters(tx: Transaction, group: str) -> int:
    return tx.run(SQL.drop_filters, group)


def matching(tx: Transaction, where: Filter) -> list[str]:
    """The queues that a filter chooses, up to the limit."""
    claim = statements("claim")
    sql = claim.queues_of_namespace if where.namespace is not None else claim.queues_of_task
    return [name for (name,) in tx.rows(sql, where.namespace, where.task, QUEUES_LIMIT)]


def seek(tx: Transaction, queue_name: str, group: str, to: Start | int, key: str | None) -> int:
    """Move a group. Ends leases, drops retries, skips and attempts; what died before is a dead letter."""
    queue = tx.existing_queue(queue_name)
    group_id = tx.existing_group(queue, group)
    lapse_lost(tx, queue, group_id)
    if key is None:
        lanes = tx.rows(SQL.lanes_of_queue, queue.id)
    else:
        lanes = tx.rows(SQL.lane_of_key, queue.id, key)
        if not lanes:
            raise NotFound(f"queue '{queue_name}' has no lane of key '{key}'")
    for lane in lanes:
        _stand_at(tx, lane, group_id, to)
    tx.hint_everyone = True
    return len(lanes)


def _stand_at(tx: Transaction, lane: Row, group_id: int, to: Start | int) -> None:
    cursor = cursor_in(tx, lane[0], group_id)
    assert cursor is not None
    tx.run(SQL.end_leases, cursor.id, tx.now)
    tx.run(SQL.drop_retries, cursor.id)
    tx.run(SQL.drop_skips, cursor.id)
    tx.run(SQL.drop_marks, lane[0])
    rest(tx, cursor, _position(tx, lane, to))


def _position(tx: Transaction, lane: Row, to: Start | int) -> int:
    lane_id, first, tail, entered_at = lane
    if isinstance(to, int):
        return int(min(max(to, first), tail))
    if to.at is StartAt.ALL or first == tail:
        return int(first)
    if to.at is StartAt.NEW or to.time is None or micros(to.time) > entered_at:
        return int(tail)
    return first_entered(tx, lane_id, first, tail, micros(to.time))


def first_entered(tx: Transaction, lane_id: int, low: int, high: int, time: int) -> int:
    """The first offset that entered at `time` or later: offsets are dense and entry times sorted, so halve."""
    while low < high:
        middle = (low + high) // 2
        if tx.value(SQL.entered_at, lane_id, middle) < time:
            low = middle + 1
        else:
            high = middle
    return low


def delete(tx: Transaction, queue_name: str, group: str) -> bool:
    """Remove a group with its cursors, leases, retries and skips."""
    if group == DEFAULT_GROUP:
        raise Invalid("group", "the default group cannot be deleted")
    queue = tx.existing_queue(queue_name)
    group_id = tx.group_id(queue, group)
    if group_id is None:
        return False
    drop_group(tx, group_id)
    tx.run(statements("queues").tidy_soon, queue.id, tx.now + TIDY_REST)
    tx.hint(queue_name)
    return True


def drop_group(tx: Transaction, group_id: int) -> None:
    cursors = tx.rows(SQL.cursors_of_group, group_id)
    tx.many(SQL.drop_retries, cursors)
    tx.many(SQL.drop_skips, cursors)
    for sql in (SQL.drop_settlements, SQL.drop_leases, SQL.drop_cursors, SQL.drop_dead, SQL.drop_group):
        tx.run(sql, group_id)
