"""What time does to a group: intake falls due, leases run out, backoffs and lives end.

Done at the start of a claim and never on its own. Each effect is worked out from
its own deadline, so a claim that comes late finds what an early one would have left.
"""

from __future__ import annotations

from collections.abc import Sequence

from qo.core.fate import Again, Dead
from qo.core.keyed_lanes import Decided, Run, lapse_run
from qo.core.lane import CursorState
from qo.core.open_lanes import OpenDecided, Tries, lapse_open
from qo.core.outcome import JobState
from qo.stores.sqlite import intake, outcomes
from qo.stores.sqlite.cursors import Cursor, cursor_by_id, follow_retries, rest
from qo.stores.sqlite.leases import LeaseRow, end_lease, read_lease
from qo.stores.sqlite.moments import micros, moment
from qo.stores.sqlite.outcomes import Finish, canceled_ends, finish_of
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import QueueRow, Transaction

SQL = statements("advance")

STEP_LIMIT = 1000
"""Rows that one claim gives back at most; more than that, it is asked again at once."""


def advance(tx: Transaction, queue: QueueRow, group_id: int) -> bool:
    """Bring a group up to date. Whether something is left to do, so that the claim should come again at once."""
    due, expiring, changing = tx.row(SQL.moments, queue.id, group_id) or (None, None, None)
    more = False
    if due is not None and due <= tx.now:
        more |= intake.enter_due(tx, queue)
        changing = tx.now  # what entered, or came back, may have outlived its time to live already
    if expiring is not None and expiring <= tx.now:
        more |= _lapse_all(tx, queue, group_id)
        changing = tx.now
    if changing is not None and changing <= tx.now:
        more |= _wake_due(tx, queue, group_id)
    return more


def next_moment(tx: Transaction, queue: QueueRow, group_id: int) -> int | None:
    """When time will next change something for this group."""
    found: int | None = tx.value(SQL.next_moment, queue.id, group_id, tx.now)
    return found


def _lapse_all(tx: Transaction, queue: QueueRow, group_id: int) -> bool:
    room = STEP_LIMIT
    while room > 0:
        rows = tx.rows(SQL.expired_leases, group_id, tx.now, room)
        if not rows:
            return False
        for row in rows:
            room -= lapse(tx, queue, read_lease(row), room)
            if room <= 0:
                break
    return True


def lapse_lost(tx: Transaction, queue: QueueRow, group_id: int) -> None:
    """Give back all that lost leases held, however much it is."""
    while _lapse_all(tx, queue, group_id):
        pass


def lapse(tx: Transaction, queue: QueueRow, lease: LeaseRow, room: int) -> int:
    """Give back what a lost lease did not settle, at most `room` messages. How many that were."""
    cursor = cursor_by_id(tx, lease.cursor_id)
    if cursor.lane.keyed:
        _lapse_run(tx, queue, cursor, lease)
        return 1
    retries = tx.rows(SQL.claimed_retries, cursor.id, lease.token)
    unsettled = lease.unsettled()
    ends: dict[int, int] = dict(tx.rows(SQL.expiries, cursor.lane.id, lease.from_offset, lease.to_offset))

    def expired(offset: int) -> bool:
        in_range = lease.from_offset <= offset < lease.to_offset
        life = ends.get(offset) if in_range else tx.value(SQL.expires_at, cursor.lane.id, offset)
        return life is not None and life <= lease.expires_at

    tried = [(offset, Tries(attempts, losses)) for offset, attempts, losses in retries]
    deadline = moment(lease.expires_at)
    for each in lapse_open(tried, unsettled, room, lease.canceled, queue.settings, deadline, tx.draw, expired):
        _give_back(tx, queue, cursor, lease, each)
    if len(retries) + len(unsettled) > room:
        tx.run(SQL.keep_settled, lease.token, lease.lane_id, lease.settled_bytes())
    else:
        end_lease(tx, lease, lease.expires_at)
    follow_retries(tx, cursor.id)
    tx.hint(queue.name)
    return max(len(retries) + len(unsettled), 1)


def lapse_whole(tx: Transaction, queue: QueueRow, lease: LeaseRow) -> None:
    """Give back all of a lease that has run out, because a verb must know how one of its messages stands."""
    lapse(tx, queue, lease, room=lease.to_offset - lease.from_offset + len(lease.retried) + 1)


def lease_over(tx: Transaction, cursor: Cursor, offset: int) -> LeaseRow | None:
    """The lease under which a message is unsettled, live or run out."""
    retry = tx.row(SQL.retry_token, cursor.id, offset)
    if retry is not None:
        row = None if retry[0] is None else tx.row(SQL.lease_of_token, retry[0], cursor.lane.id)
        return None if row is None else read_lease(row)
    if cursor.lane.keyed and tx.row("SELECT 1 FROM skips WHERE cursor_id = ? AND offset = ?", cursor.id, offset):
        return None
    leases = map(read_lease, tx.rows(SQL.leases_over, cursor.id, offset))
    return next((lease for lease in leases if not lease.is_marked(offset)), None)


def _give_back(tx: Transaction, queue: QueueRow, cursor: Cursor, lease: LeaseRow, decided: OpenDecided) -> None:
    """One message of an open lane, from a lost lease."""
    offset, fate, _, fresh = decided
    if fresh:
        lease.mark(offset)
    if isinstance(fate, Again):
        wait = (cursor.id, offset, fate.attempts, fate.losses, micros(fate.at))
        if fresh:
            tx.run(SQL.add_retry, *wait, cursor.lane.id)
        else:
            tx.run(SQL.give_back_retry, *wait)
    elif not fresh:
        tx.run(SQL.drop_retry, cursor.id, offset)
    _note_lost(tx, queue, cursor, lease, [Decided(*decided[:3])])


def _lapse_run(tx: Transaction, queue: QueueRow, cursor: Cursor, lease: LeaseRow) -> None:
    tx.hint(queue.name)
    end_lease(tx, lease, lease.expires_at)
    run = Run(
        start=lease.from_offset,
        end=lease.to_offset,
        attempts=cursor.attempts,
        losses=cursor.losses,
        canceled=frozenset(lease.canceled),
    )
    life = tx.value(SQL.expires_at, cursor.lane.id, run.start)
    expired = life is not None and life <= lease.expires_at
    change = lapse_run(run, queue.settings, moment(lease.expires_at), tx.draw(), expired)
    for offset in change.canceled:
        tx.run(SQL.skip, cursor.id, offset)
    gone = canceled_ends(change.canceled, lease.owner)
    outcomes.finish(tx, queue, cursor.group_id, cursor.lane.id, gone)
    _note_lost(tx, queue, cursor, lease, change.decided)
    blocked_until = None if change.blocked_until is None else micros(change.blocked_until)
    rest(tx, cursor, change.rest_at, attempts=change.attempts, losses=change.losses, blocked_until=blocked_until)


def _note_lost(tx: Transaction, queue: QueueRow, cursor: Cursor, lease: LeaseRow, decided: Sequence[Decided]) -> None:
    """What became of messages whose lease was lost: outcomes, dead letters, events."""
    finishes = []
    for offset, fate, attempt in decided:
        if isinstance(fate, Again):
            detail = f"lease lost ({fate.losses})"
            outcomes.note_event(tx, queue, cursor.group_id, cursor.lane.id, offset, JobState.QUEUED, detail)
        elif isinstance(fate, Dead):
            outcomes.bury(tx, cursor.group_id, cursor.lane.id, offset, fate)
        finish = finish_of(offset, fate, attempt, lease.owner, lease.started.get(offset))
        if finish is not None:
            finishes.append(finish)
    outcomes.finish(tx, queue, cursor.group_id, cursor.lane.id, finishes)


def _wake_due(tx: Transaction, queue: QueueRow, group_id: int) -> bool:
    """End the backoffs that are over, and cancel heads whose time to live has run out."""
    ids = tx.rows(SQL.due_keyed, group_id, tx.now, STEP_LIMIT)
    for (cursor_id,) in ids:
        cursor = cursor_by_id(tx, cursor_id)
        if cursor.state is CursorState.BLOCKED:
            tx.run(SQL.unblock, cursor_id)
            cursor = cursor_by_id(tx, cursor_id)
        while cursor.state is CursorState.READY and cursor.due_at is not None and cursor.due_at <= tx.now:
            expire_head(tx, queue, cursor)
            cursor = cursor_by_id(tx, cursor_id)
    return len(ids) == STEP_LIMIT


def expire_head(tx: Transaction, queue: QueueRow, cursor: Cursor) -> None:
    """The head's time to live is over: cancel it and stand at the next."""
    tx.hint(queue.name)
    gone = Finish(cursor.position, JobState.CANCELED, cursor.attempts, "expired")
    outcomes.finish(tx, queue, cursor.group_id, cursor.lane.id, [gone])
    rest(tx, cursor, cursor.position + 1)
