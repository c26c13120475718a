"""tidy: remove what need not be kept, in small steps.

A lane is looked at when its `tidy_at` says so, never in a sweep over all lanes.
Each look marks how far every group has settled; once a mark is `retain` old,
what lies below it goes. Marks are set at most eight times per `retain`, so a
message is removed between `retain` and nine eighths of it after it was settled.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from qo.core.names import DEFAULT_GROUP
from qo.core.queue import QueueSettings
from qo.core.retention import KEEP_NONCES, KEEP_SETTLED
from qo.stores.sqlite import dedupe, traces
from qo.stores.sqlite.cursors import cursor_by_id, follow_retries, rest
from qo.stores.sqlite.dedupe import UNIQUE_CHECK_REST
from qo.stores.sqlite.groups import first_entered
from qo.stores.sqlite.lanes import Lane
from qo.stores.sqlite.leases import LeaseRow, read_lease
from qo.stores.sqlite.moments import maybe_moment, span
from qo.stores.sqlite.places import remove_below
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import QueueRow, Transaction

SQL = statements("tidy")

LANES_LIMIT = 100
ROWS_LIMIT = 1000
MARKS_PER_RETAIN = 8
FREE_PAGES, FREE_SHARE = 1000, 0.25
"""Free pages are given back to the disk if there are more of them than this, and this share of the file is free."""
VACUUM_PAGES = 500
INCREMENTAL = 2


class Standing(NamedTuple):
    """How a lane's messages are held: by groups that have not settled them, and by live leases."""

    settled_to: int
    unleased_to: int
    group_idle_at: int | None


def tidy(tx: Transaction) -> datetime | None:
    """One bounded step. Answers when the next is due."""
    lanes = tx.rows(SQL.lanes, tx.now, LANES_LIMIT)
    for *lane, queue_name in lanes:
        _tidy_lane(tx, tx.existing_queue(queue_name), Lane(*lane))
    more = _drop_settlements(tx)
    tx.run(SQL.drop_nonces, tx.now - span(KEEP_NONCES), ROWS_LIMIT)
    _check_dedupe(tx)
    intake_next = _drop_canceled_intake(tx)
    trace_next = traces.drop_old(tx, ROWS_LIMIT)
    lane_next, lease_next, nonce_next, dedupe_next = tx.row(SQL.next, tx.now - span(KEEP_SETTLED)) or (None,) * 4
    more |= _give_space_back(tx)
    times = [
        tx.now if more else None,
        lane_next,
        None if lease_next is None else lease_next + span(KEEP_SETTLED),
        None if nonce_next is None else nonce_next + span(KEEP_NONCES),
        dedupe_next,
        intake_next,
        trace_next,
    ]
    return maybe_moment(min((time for time in times if time is not None), default=None))


def _give_space_back(tx: Transaction) -> bool:
    """Let the file shrink, a step at a time, where much of it is free. Whether there is more to give back.

    What is free is used again by the next messages; so only what a quieter time will not need goes.
    """
    free, pages = tx.value("PRAGMA freelist_count"), tx.value("PRAGMA page_count")
    if free < FREE_PAGES or free < pages * FREE_SHARE or tx.value("PRAGMA auto_vacuum") != INCREMENTAL:
        return False
    tx.rows(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")
    return True


def _tidy_lane(tx: Transaction, queue: QueueRow, lane: Lane) -> None:
    settings = queue.settings
    standing = _standing(tx, queue, lane)
    marks = tx.rows(SQL.marks, lane.id)
    retain = span(settings.retain)
    matured = [offset for at, offset in marks if at + retain <= tx.now]
    # A mark says what was settled then; a seek, or a group that came later, may have gone back since.
    settled = standing.settled_to if not retain else min(max(matured, default=lane.first), standing.settled_to)
    floor = max(min(max(settled, _forced_floor(tx, settings, lane)), standing.unleased_to), lane.first)
    step = min(floor, lane.first + ROWS_LIMIT)
    if step > lane.first:
        _remove_below(tx, lane, step)
        tx.hint(queue.name)  # a cursor may stand at another head now
    if step == lane.tail and _drop_if_unused(tx, lane):
        return
    soon = tx.now if step < floor else None
    next_mark = _mark(tx, lane, standing.settled_to, marks, retain)
    times = [soon, next_mark, standing.group_idle_at, _next_aged(tx, settings, lane, step)]
    tx.run(SQL.set_lane, lane.id, step, min((time for time in times if time is not None), default=None))


def _standing(tx: Transaction, queue: QueueRow, lane: Lane) -> Standing:
    settled_to = unleased_to = lane.tail
    idle_times = []
    for cursor_id, position, _, _, active_at, group in tx.rows(SQL.cursors, lane.id):
        leases = [read_lease(row) for row in tx.rows(SQL.live_leases, cursor_id)]
        leased = min((_first_unsettled(lease, lane.keyed) for lease in leases), default=lane.tail)
        claimed = tx.value(SQL.first_claimed_retry, cursor_id)
        unleased_to = min(unleased_to, leased, lane.tail if claimed is None else claimed)
        idle_at = active_at + span(queue.settings.group_idle)
        if idle_at <= tx.now or (group == DEFAULT_GROUP and not queue.settings.default_group):
            continue
        waiting = tx.value(SQL.first_retry, cursor_id)
        group_settled_to = min(position, leased, lane.tail if waiting is None else waiting)
        settled_to = min(settled_to, group_settled_to)
        if group_settled_to < lane.tail:
            idle_times.append(idle_at)
    return Standing(settled_to, unleased_to, min(idle_times, default=None))


def _first_unsettled(lease: LeaseRow, keyed: bool) -> int:
    return lease.from_offset if keyed else next(iter(lease.unsettled()), lease.to_offset)


def _forced_floor(tx: Transaction, settings: QueueSettings, lane: Lane) -> int:
    """How far the queue's age and size rules reach, settled or not."""
    floor = lane.first
    if settings.max_length is not None:
        floor = max(floor, lane.tail - settings.max_length)
    if settings.max_age is not None and lane.first < lane.tail:
        floor = max(floor, first_entered(tx, lane.id, lane.first, lane.tail, tx.now - span(settings.max_age) + 1))
    return floor


def _next_aged(tx: Transaction, settings: QueueSettings, lane: Lane, first: int) -> int | None:
    if settings.max_age is None or first >= lane.tail:
        return None
    entered: int = tx.value(SQL.entered_at, lane.id, first)
    return max(entered + span(settings.max_age), tx.now + 1_000_000)


def _mark(tx: Transaction, lane: Lane, settled_to: int, marks: list[tuple[int, int]], retain: int) -> int | None:
    """Note how far all groups have settled. Answers when the lane is to be looked at for that reason."""
    pending = [mark for mark in marks if mark[0] + retain > tx.now]
    last_at, last_offset = pending[-1] if pending else (None, lane.first)
    if settled_to > last_offset and retain:
        earliest = tx.now if last_at is None else last_at + retain // MARKS_PER_RETAIN
        if earliest > tx.now:
            return int(min(earliest, pending[0][0] + retain))
        tx.run(SQL.add_mark, lane.id, tx.now, settled_to)
        pending.append((tx.now, settled_to))
    return pending[0][0] + retain if pending else None


def _remove_below(tx: Transaction, lane: Lane, floor: int) -> None:
    for cursor_id, position, *_ in tx.rows(SQL.cursors, lane.id):
        dropped = tx.run(SQL.drop_retries, cursor_id, floor)
        missed = dropped + max(floor - max(position, lane.first), 0)
        if missed:
            tx.run(SQL.missed, cursor_id, missed)
            follow_retries(tx, cursor_id) if not lane.keyed else None
        if position < floor:
            rest(tx, cursor_by_id(tx, cursor_id), floor)
    if tx.watched:
        tx.finished |= {id for (id,) in tx.rows(SQL.watched, lane.id, floor)} & tx.watched
    for sql in (SQL.drop_events, SQL.drop_addressed, SQL.drop_outcomes, SQL.drop_marks):
        tx.run(sql, lane.id, floor)
    remove_below(tx, lane.id, floor)


def _drop_if_unused(tx: Transaction, lane: Lane) -> bool:
    """An empty lane that nobody holds goes; its key starts anew when it comes back."""
    cursors = tx.rows(SQL.cursors, lane.id)
    if any(tx.row(SQL.live_leases, cursor[0]) for cursor in cursors):
        return False
    tx.many("DELETE FROM skips WHERE cursor_id = ?", [cursor[:1] for cursor in cursors])
    tx.run(SQL.drop_marks, lane.id, lane.tail)
    tx.run(SQL.drop_cursors, lane.id)
    tx.run(SQL.drop_lane, lane.id)
    return True


def _drop_settlements(tx: Transaction) -> bool:
    tokens = tx.rows(SQL.ended_leases, tx.now - span(KEEP_SETTLED), ROWS_LIMIT)
    tx.many(SQL.drop_leases, tokens)
    tx.many(SQL.drop_settlements, tokens)
    return len(tokens) == ROWS_LIMIT


def _check_dedupe(tx: Transaction) -> None:
    for queue_id, scope, key, message_id, until, queue_name in tx.rows(SQL.dedupe, tx.now, ROWS_LIMIT):
        queue = tx.existing_queue(queue_name)
        if until is None and not dedupe.is_finished(tx, queue, message_id):
            tx.run(SQL.check_dedupe_later, queue_id, scope, key, tx.now + UNIQUE_CHECK_REST)
        elif scope and dedupe.exists(tx, message_id):  # it is a name, too
            later = max(UNIQUE_CHECK_REST, span(queue.settings.retain))
            tx.run(SQL.check_dedupe_later, queue_id, scope, key, tx.now + later)
        else:
            tx.run(SQL.drop_dedupe, queue_id, scope, key)


def _drop_canceled_intake(tx: Transaction) -> int | None:
    times = []
    rows = tx.rows(SQL.canceled_intake, ROWS_LIMIT)
    for id, canceled_at, queue_name in rows:
        gone_at = canceled_at + span(tx.existing_queue(queue_name).settings.retain)
        if gone_at <= tx.now:
            tx.run("DELETE FROM intake WHERE id = ?", id)
        else:
            times.append(gone_at)
    if len(times) < len(rows) == ROWS_LIMIT:
        return tx.now  # there may be more
    return min(times, default=None)
