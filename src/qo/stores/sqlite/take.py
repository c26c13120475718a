"""take: what a claim takes of one lane, and the lease that is written for it.

A keyed lane gives a run and is held; an open lane gives its due retries, then
fresh messages, and stays open to others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

from qo.core.fate import FRAGILE_LOSSES, Completed, Dead
from qo.core.lane import LaneId
from qo.core.lease import Delivered
from qo.core.message import SEALED
from qo.core.outcome import JobState
from qo.core.queue import History
from qo.core.taking import Offered, Passed, is_over, may_take, run_room, take_run, why_passed
from qo.stores.pages import within
from qo.stores.sealing import Stored, Unreadable, check_sealed, opened
from qo.stores.sqlite import outcomes
from qo.stores.sqlite.batch import Ahead, Batch, Part, Source, expires_at, size_of
from qo.stores.sqlite.cursors import Cursor, Rest, follow_retries, rest
from qo.stores.sqlite.events import record_events
from qo.stores.sqlite.moments import moment, span
from qo.stores.sqlite.outcomes import Finish, finish_of, starts_at_once
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import Row, Transaction

SQL = statements("claim")
TIME = statements("advance")

NO_HEADERS: dict[str, str] = {}
NO_SKIPS: set[int] = set()


class Content(NamedTuple):
    """What a message says, opened if it was sealed."""

    payload: bytes
    headers: Mapping[str, str]


class Taken(NamedTuple):
    """A message that a claim takes, with the attempts and losses it had before."""

    message: Row
    content: Content
    attempts: int
    losses: int

    @property
    def size(self) -> int:
        return size_of(self.message)


def sizes_of(taken: list[Taken]) -> int:
    return sum(each.size for each in taken)


def take(tx: Transaction, source: Source, ahead: Ahead, batch: Batch) -> None:
    """Take what this lane has for the want."""
    cursor = ahead.cursor
    if not cursor.lane.keyed:
        _take_open(tx, source, cursor, batch)
    elif not may_take(cursor.losses, may_take_fragile=batch.may_take_fragile):
        batch.met_fragile = True
        batch.passed_over.add(cursor.id)
    else:
        _take_run(tx, source, ahead, batch)


def _take_run(tx: Transaction, source: Source, ahead: Ahead, batch: Batch) -> None:
    """Lease a run from a keyed lane. It stops before the first message of a kind that is not accepted."""
    cursor = ahead.cursor
    batch.passed_over.add(cursor.id)  # one run of a lane to a claim, also if it is settled at delivery
    run, position = _run(tx, source, ahead, batch)
    if not run:
        rest(tx, cursor, position)
        tx.hint(source.queue.name)
        return
    end = run[-1].message[0] + 1
    fragile = cursor.position if run[0].losses >= FRAGILE_LOSSES else None
    _deliver(tx, source, cursor, batch, run)
    if batch.want.auto_settle:
        batch.bring_to_rest(Rest(cursor, end, skips=ahead.skips or position > cursor.position + len(run)))
        tx.hint(source.queue.name)  # the next head may be of a kind that others wait for
    else:
        batch.lease(tx, source, cursor, Part(run[0].message[0], end, fragile=fragile))
        batch.hold(cursor, end)


def _run(tx: Transaction, source: Source, ahead: Ahead, batch: Batch) -> tuple[list[Taken], int]:
    """The messages of a run, and how far the lane was looked at."""
    cursor = ahead.cursor
    coming: Iterable[Row] = ahead.messages
    room = run_room(cursor.losses, batch.room, batch.want.lane_messages)
    run: list[Taken] = []
    position, stopped = cursor.position, False
    while len(run) < room and not stopped and position < cursor.lane.tail:
        left = batch.bytes_left - sizes_of(run)
        coming = coming or tx.each(SQL.messages, cursor.lane.id, position, room - len(run))
        messages, cut = within(islice(coming, room - len(run)), size_of, left)
        coming = []
        if not messages or (run and (left <= 0 or size_of(messages[0]) > left)):
            break
        skips = _skips_among(tx, cursor, messages) if ahead.skips else NO_SKIPS
        if batch.want.kinds is not None or skips or _may_be_passed(source, messages):
            offered = (Offered(each[0], each[2], _is_passed(tx, source, cursor, each, skips)) for each in messages)
            taken = take_run(offered, position, batch.want.kinds, room - len(run))
            position, stopped = taken.position, taken.stopped
            delivered = set(taken.offsets)
            messages = [each for each in messages if each[0] in delivered]
        else:
            position = messages[-1][0] + 1
        for message in messages:
            attempts, losses = (cursor.attempts, cursor.losses) if message[0] == cursor.position else (0, 0)
            content = _content(tx, source, cursor, message, attempts, losses)
            if content is not None:
                run.append(Taken(message, content, attempts, losses))
        stopped |= cut and bool(run)
    return run, position


def _skips_among(tx: Transaction, cursor: Cursor, messages: list[Row]) -> set[int]:
    return {offset for (offset,) in tx.rows(TIME.skips_between, cursor.id, messages[0][0], messages[-1][0] + 1)}


def _may_be_passed(source: Source, messages: list[Row]) -> bool:
    """Whether one of these may be no message to deliver: it has a time to live, or is addressed to one group."""
    if source.queue.settings.max_age is not None:
        return True
    return any(each[9] is not None or each[10] is not None for each in messages)


def _is_passed(tx: Transaction, source: Source, cursor: Cursor, message: Row, skips: set[int]) -> bool:
    """Whether a claim goes past this message: skipped, addressed to another group, or out of its time to live.

    What is passed inside a keyed run becomes a skip, so that settling and losing
    the run need not know why it was not delivered.
    """
    offset, expires_at, group_id = message[0], message[9], message[10]
    max_age = source.queue.settings.max_age
    passed = why_passed(
        skipped=offset in skips,
        addressed_elsewhere=group_id not in (None, cursor.group_id),
        entered_at=message[8],
        expires_at=expires_at,
        max_age=None if max_age is None else span(max_age),
        now=tx.now,
    )
    if passed is None:
        return False
    if passed is not Passed.SKIPPED and cursor.lane.keyed:
        tx.run(TIME.skip, cursor.id, offset)
    if passed is Passed.EXPIRED:
        _expire(tx, source, cursor, offset, cursor.attempts if cursor.lane.keyed and offset == cursor.position else 0)
    return True


def _content(
    tx: Transaction, source: Source, cursor: Cursor, message: Row, attempts: int, losses: int
) -> Content | None:
    """What a message says. None: it cannot be opened, and is a dead letter now; it is passed like a skip."""
    payload, headers = message[4:6]
    since = source.queue.settings.sealed_since
    if headers is None and since is None:
        return Content(payload, NO_HEADERS)
    offset, id, created_at = message[0], message[1], message[6]
    said = json.loads(headers) if headers else NO_HEADERS
    if SEALED not in said and since is None:
        return Content(payload, said)
    stored = Stored(source.queue.name, cursor.lane.key, id, payload, said)
    try:
        check_sealed(said, moment(created_at), since)
        return Content(*opened(tx.opening_key, stored, retried=message[11] is not None))
    except Unreadable as error:
        end = Dead("unreadable", str(error), attempts, losses)
    outcomes.bury(tx, cursor.group_id, cursor.lane.id, offset, end)
    finish = finish_of(offset, end, attempts, None, None)
    assert finish is not None
    outcomes.finish(tx, source.queue, cursor.group_id, cursor.lane.id, [finish])
    if cursor.lane.keyed:
        tx.run(TIME.skip, cursor.id, offset)
    tx.note_unreadable()
    return None


def _is_over(tx: Transaction, source: Source, message: Row) -> bool:
    max_age = source.queue.settings.max_age
    return is_over(message[8], message[9], None if max_age is None else span(max_age), tx.now)


def _expire(tx: Transaction, source: Source, cursor: Cursor, offset: int, attempts: int) -> None:
    gone = Finish(offset, JobState.CANCELED, attempts, "expired")
    outcomes.finish(tx, source.queue, cursor.group_id, cursor.lane.id, [gone])


def _take_open(tx: Transaction, source: Source, cursor: Cursor, batch: Batch) -> None:
    """Take an open lane's due retries, then its fresh messages."""
    batch.passed_over.add(cursor.id)  # it gives all that it can at once
    retries = _take_retries(tx, source, cursor, batch)
    fresh, start, end, settled = _take_fresh(tx, source, cursor, batch, retries)
    taken = retries + fresh
    if taken:
        fragile = next((each.message[0] for each in retries if each.losses >= FRAGILE_LOSSES), None)
        _deliver(tx, source, cursor, batch, taken)
        offsets = [each.message[0] for each in retries]
        if batch.want.auto_settle:
            tx.many(TIME.drop_retry, [(cursor.id, offset) for offset in offsets])
        else:
            tx.many(SQL.take_retry, [(cursor.id, offset, batch.want.token) for offset in offsets])
            batch.lease(tx, source, cursor, Part(start, end, settled, offsets, fragile))
    if end > cursor.position:
        rest(tx, cursor, end)
    else:
        follow_retries(tx, cursor.id)


def _take_retries(tx: Transaction, source: Source, cursor: Cursor, batch: Batch) -> list[Taken]:
    if cursor.due_at is None or cursor.due_at > tx.now:
        return []
    taken: list[Taken] = []
    may_take_fragile = batch.may_take_fragile
    rows = tx.rows(SQL.retries_to_take, cursor.id, tx.now, FRAGILE_LOSSES, may_take_fragile, batch.room)
    while rows and len(taken) < batch.room:
        for offset, attempts, losses in rows:
            if len(taken) == batch.room:
                break
            message = tx.row(SQL.message, cursor.lane.id, offset)
            assert message is not None
            if taken and sizes_of(taken) + size_of(message) > batch.bytes_left:
                return taken
            if _is_over(tx, source, message):
                tx.run(TIME.drop_retry, cursor.id, offset)
                _expire(tx, source, cursor, offset, attempts)
            elif not may_take(losses, may_take_fragile=may_take_fragile):
                continue
            else:
                content = _content(tx, source, cursor, message, attempts, losses)
                if content is None:
                    tx.run(TIME.drop_retry, cursor.id, offset)
                    continue
                may_take_fragile &= losses < FRAGILE_LOSSES
                taken.append(Taken(message, content, attempts, losses))
        seen = [each.message[0] for each in taken]
        rows = tx.rows(SQL.retries_to_take, cursor.id, tx.now, FRAGILE_LOSSES, may_take_fragile, batch.room + len(seen))
        rows = [row for row in rows if row[0] not in seen]
    return taken


def _take_fresh(
    tx: Transaction, source: Source, cursor: Cursor, batch: Batch, retries: list[Taken]
) -> tuple[list[Taken], int, int, int]:
    """Fresh messages, beside these retries; the range they span, and the bits of what is passed in it."""
    taken: list[Taken] = []
    start = position = cursor.position
    settled, room, budget = 0, batch.room - len(retries), batch.bytes_left - sizes_of(retries)
    cut = bool(retries) and budget <= 0
    while len(taken) < room and not (cut and (taken or retries)):
        coming = tx.each(SQL.messages, cursor.lane.id, position, room - len(taken))
        messages, cut = within(coming, size_of, budget - sizes_of(taken))
        if not messages:
            break
        if not taken and not settled:
            start = messages[0][0]
        skips = _skips_among(tx, cursor, messages)
        for message in messages:
            position = message[0] + 1
            passed = _is_passed(tx, source, cursor, message, skips)
            content = None if passed else _content(tx, source, cursor, message, 0, 0)
            if content is None:
                settled |= 1 << (message[0] - start)
            else:
                taken.append(Taken(message, content, 0, 0))
    return taken, start, position, settled


def _deliver(tx: Transaction, source: Source, cursor: Cursor, batch: Batch, taken: list[Taken]) -> None:
    """Hand the messages over; with `auto_settle`, complete them here and now."""
    lane, queue, token = cursor.lane, source.queue.name, batch.want.token
    held_until = moment(expires_at(tx, source, batch.want))
    batch.lanes.add(lane.id)
    batch.bytes_left -= sizes_of(taken)
    if any(each.losses >= FRAGILE_LOSSES for each in taken):
        batch.may_take_fragile = False  # one to a claim, also if it is settled at delivery
    for (
        offset,
        id,
        kind,
        priority,
        _,
        _,
        created_at,
        due_at,
        entered_at,
        _,
        _,
        retry_of,
    ), (payload, headers), attempts, _ in taken:
        batch.deliveries.append(
            Delivered(
                token=token,
                lane=LaneId(lane.id),
                offset=offset,
                id=id,
                queue=queue,
                key=lane.key,
                kind=kind or lane.kind or "",
                payload=payload,
                headers=headers,
                priority=(lane.priority or 0) if priority is None else priority,
                attempt=attempts + 1,
                created_at=moment(created_at),
                due_at=moment(created_at if due_at is None else due_at),
                entered_at=moment(entered_at),
                expires_at=held_until,
                retry_of=retry_of,
            )
        )
    if batch.want.auto_settle:
        ends = [
            finish_of(each.message[0], Completed(None), each.attempts + 1, batch.want.owner, None) for each in taken
        ]
        outcomes.finish(tx, source.queue, cursor.group_id, lane.id, [end for end in ends if end is not None])
    elif source.queue.settings.history is History.FULL and cursor.group_id == source.queue.default_group_id:
        ids, owner = [each.message[1] for each in taken], batch.want.owner or ""
        record_events(tx, ids, JobState.ASSIGNED, owner)
        if starts_at_once(tx, owner):
            record_events(tx, ids if lane.key is None else ids[:1], JobState.RUNNING, owner)
