"""inspect: bounded reads, on a connection of their own."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import apsw

from qo.core.errors import NotFound
from qo.core.lane import CursorState, LaneId, Start, StartAt
from qo.core.message import MessageId, checked_id, id_text
from qo.core.names import DEFAULT_GROUP
from qo.core.outcome import (
    RATE_LENGTH,
    RATE_SCAN,
    DeadLetter,
    Depth,
    Event,
    GroupInfo,
    GroupPlace,
    Health,
    Job,
    JobState,
    LaneInfo,
    QueueInfo,
    QueueOverview,
    as_of,
)
from qo.core.verbs import DeadLettersWanted
from qo.stores.pages import PAGE_BYTES, job_size, too_much, within
from qo.stores.sealing import Stored, shown
from qo.stores.sqlite.leases import read_lease
from qo.stores.sqlite.moments import maybe_moment, micros, moment, span
from qo.stores.sqlite.places import row_of
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import QueueRow, Row, Transaction, read_settings

SQL = statements("inspect")

SCAN_LIMIT = 10_000
"""How many messages a listing by state looks through at most."""


def queue(tx: Transaction, name: str) -> QueueInfo:
    row = tx.row(SQL.queue, name)
    if row is None:
        raise NotFound(f"there is no queue '{name}'")
    return _queue(row)


def queues(tx: Transaction, after: str, limit: int) -> list[QueueInfo]:
    return [_queue(row) for row in tx.rows(SQL.queues, after, limit)]


def _queue(row: Row) -> QueueInfo:
    name, namespace, task, settings, paused, created_at = row
    return QueueInfo(
        name=name,
        namespace=namespace,
        task=task,
        settings=read_settings(settings),
        paused=bool(paused),
        created_at=moment(created_at),
    )


def overview(tx: Transaction, after: str, limit: int) -> list[QueueOverview]:
    since = tx.now - span(RATE_LENGTH)
    entered: dict[int, int] = dict(tx.rows(SQL.entered_since, since, RATE_SCAN))
    ended: dict[int, int] = dict(tx.rows(SQL.ended_since, since, RATE_SCAN))
    found = []
    for info in queues(tx, after, limit):
        row, here = tx.existing_queue(info.name), depth(tx, info.name, DEFAULT_GROUP)
        found.append(
            QueueOverview(
                name=info.name,
                paused=info.paused,
                waiting=here.ready + here.retrying + here.delayed,
                running=here.leased,
                failed=here.dead,
                oldest_at=here.oldest_at,
                rate_in=entered.get(row.id, 0),
                rate_out=ended.get(row.default_group_id, 0),
            )
        )
    return found


def queues_of(tx: Transaction, lanes: Sequence[int], tokens: Sequence[str]) -> Collection[str]:
    """The queues of lanes, and of the lanes that tokens have leases on."""
    found = {tx.value(SQL.queue_of_lane, lane) for lane in set(lanes)}
    found |= {name for token in set(tokens) for (name,) in tx.rows(SQL.queues_of_token, token)}
    return found - {None}


def groups(tx: Transaction, queue_name: str) -> list[GroupInfo]:
    return [_group(row) for row in tx.rows(SQL.groups, tx.existing_queue(queue_name).id)]


def _group(row: Sequence[Any]) -> GroupInfo:
    name, start_at, start_time, created_at, claimed_at, lag = row
    start = Start(StartAt(start_at), maybe_moment(start_time))
    return GroupInfo(
        name=name, start=start, created_at=moment(created_at), claimed_at=maybe_moment(claimed_at), lag=lag
    )


def depth(tx: Transaction, queue_name: str, group: str) -> Depth:
    queue = tx.existing_queue(queue_name)
    group_id = tx.existing_group(queue, group)
    ready, oldest = tx.row(SQL.ready, group_id) or (0, None)
    retrying, oldest_retry = tx.row(SQL.retrying, group_id) or (0, None)
    delayed, dead, missed = tx.row(SQL.counts, queue.id, group_id) or (0, 0, 0)
    ages = [time for time in (oldest, oldest_retry) if time is not None]
    leases = [(row[11] > tx.now, unsettled_of(row)) for row in tx.rows(SQL.live_leases, group_id)]
    return Depth(
        ready=ready + sum(count for lives, count in leases if not lives),
        retrying=retrying,
        leased=sum(count for lives, count in leases if lives),
        delayed=delayed,
        dead=dead,
        missed=missed,
        oldest_at=maybe_moment(min(ages, default=None)),
    )


def unsettled(tx: Transaction, queue: QueueRow) -> int:
    """How many messages the slowest group has not settled, of those groups that hold messages back.

    The default group counts once it has claimed, or as long as nobody else has.
    """
    longest = delayed = 0
    groups = tx.rows(SQL.groups, queue.id)
    others_claim = any(claimed_at is not None for _, _, _, _, claimed_at, _ in groups)
    for name, _, _, created_at, claimed_at, _ in groups:
        unused = claimed_at is None and others_claim
        switched_off = name == DEFAULT_GROUP and (unused or not queue.settings.default_group)
        if switched_off or (claimed_at or created_at) + span(queue.settings.group_idle) <= tx.now:
            continue
        found = depth(tx, queue.name, name)
        longest, delayed = max(longest, found.ready + found.retrying + found.leased), found.delayed
    return longest + delayed


def unsettled_of(row: Row) -> int:
    lease, (keyed, retries, skips) = read_lease(row[:12]), row[12:15]
    in_range = lease.to_offset - lease.from_offset
    return int(in_range - skips if keyed else in_range - lease.settled.bit_count() + retries)


def lanes(tx: Transaction, queue_name: str, group: str, after: int, limit: int) -> list[LaneInfo]:
    queue = tx.existing_queue(queue_name)
    group_id = tx.existing_group(queue, group)
    return [
        LaneInfo(
            lane=LaneId(id),
            key=key,
            kind=kind,
            priority=priority,
            first=first,
            tail=tail,
            state=CursorState(state),
            position=position,
            lag=tail - position,
            leased=leased,
        )
        for id, key, kind, priority, first, tail, state, position, leased in tx.rows(
            SQL.lanes, queue.id, group_id, after, limit
        )
    ]


def jobs(tx: Transaction, ids: Sequence[MessageId]) -> list[Job | None]:
    found, cut = within((_job_of(tx, id) for id in ids), job_size, PAGE_BYTES)
    if cut:
        raise too_much(len(found))
    return found


def _job_of(tx: Transaction, id: MessageId) -> Job | None:
    row = row_of(tx, id)
    found = tx.row(SQL.job_in_intake, id) if row is None else tx.row(SQL.job_in_lane, row)
    return None if found is None else _job(tx, found)


def _shown(
    tx: Transaction, queue: str, key: str | None, payload: bytes, headers: str | None
) -> tuple[bytes, Mapping[str, str]]:
    return shown(tx.opening_key, Stored(queue, key, None, payload, json.loads(headers) if headers else {}))


def _job(tx: Transaction, row: Row) -> Job:
    (_, queue, kind, key, state, attempt, _, created_at, due_at, owner, lease_expires_at, heartbeat_at, started_at,
     finished_at, reason, error, result, payload, headers, id, _) = row  # fmt: skip
    payload, said = _shown(tx, queue, key, payload, headers)
    job = Job(
        id=id_text(id),
        queue=queue,
        kind=kind,
        key=key,
        state=None if state is None else JobState(state),
        attempt=attempt,
        payload=payload,
        headers=said,
        created_at=moment(created_at),
        due_at=moment(due_at),
        lease_owner=owner,
        lease_expires_at=maybe_moment(lease_expires_at),
        heartbeat_at=maybe_moment(heartbeat_at),
        started_at=maybe_moment(started_at),
        finished_at=maybe_moment(finished_at),
        reason=reason,
        error=error,
        result=result,
    )
    return as_of(job, moment(tx.now))


def list_jobs(tx: Transaction, queue_name: str, state: JobState | None, before: str | None, limit: int) -> list[Job]:
    queue_id = tx.existing_queue(queue_name).id
    end = b"\xff" * 16 if before is None else checked_id("before", before)
    ids = tx.rows(SQL.newest, queue_id, end, limit if state is None else SCAN_LIMIT)
    coming = (job for (id,) in ids if (job := _job_of(tx, id)) is not None and state in (None, job.state))
    found, _ = within(islice(coming, limit), job_size, PAGE_BYTES)
    return found


def events(tx: Transaction, id: MessageId) -> list[Event]:
    rows = tx.rows(SQL.events, id)
    return [Event(at=moment(at), state=JobState(state), detail=detail) for at, state, detail in rows]


def dead(tx: Transaction, queue_name: str, group: str | None, after: str | None, limit: int) -> list[DeadLetter]:
    queue = tx.existing_queue(queue_name)
    start = b"" if after is None else checked_id("after", after)
    return _page(tx, tx.each(SQL.dead, queue.id, start, group, limit))


def dead_letters(tx: Transaction, wanted: DeadLettersWanted) -> tuple[list[DeadLetter], int]:
    since = None if wanted.since is None else micros(wanted.since)
    until = None if wanted.until is None else micros(wanted.until)
    chosen = (wanted.queue, wanted.group, wanted.key, since, until, wanted.name)
    count: int = tx.value(SQL.count_letters, *chosen)
    return _page(tx, tx.each(SQL.letters, *chosen, wanted.limit, wanted.offset)), count


def _page(tx: Transaction, rows: Iterator[Row]) -> list[DeadLetter]:
    found, _ = within(rows, lambda row: len(row[6]) + len(row[7] or ""), PAGE_BYTES)
    return [_letter(tx, row) for row in found]


def _letter(tx: Transaction, row: Row) -> DeadLetter:
    (id, queue, group, key, kind, priority, payload, headers, attempts, losses, reason, error, created_at,
     died_at) = row  # fmt: skip
    payload, said = _shown(tx, queue, key, payload, headers)
    return DeadLetter(
        id=id_text(id),
        queue=queue,
        group=group,
        kind=kind,
        key=key,
        priority=priority,
        payload=payload,
        headers=said,
        attempts=attempts,
        losses=losses,
        reason=reason,
        error=error,
        created_at=moment(created_at),
        died_at=moment(died_at),
    )


def group_places(tx: Transaction, group: str | None, limit: int) -> list[GroupPlace]:
    return [
        GroupPlace(queue=queue, info=_group(row), oldest_at=maybe_moment(oldest))
        for queue, oldest, *row in tx.rows(SQL.group_places, group, limit)
    ]


def health(tx: Transaction, path: str) -> Health:
    names = ("queues", "lanes", "messages", "in intake", "live leases", "dead letters")
    details = dict(zip(names, map(str, tx.row(SQL.totals) or ()), strict=False))
    details["file"] = path
    details["journal mode"] = str(tx.value("PRAGMA journal_mode"))
    holding = tx.row(SQL.holding)
    if holding is not None:
        details["holds most back"] = f"group '{holding[1]}' of queue '{holding[0]}': {holding[2]} messages"
    problems = [
        f"group '{group}' of queue '{queue}' missed {count} messages that were removed before it came for them"
        for queue, group, count in tx.rows(SQL.missed)
    ]
    check = str(tx.value("PRAGMA quick_check(1)"))
    if check != "ok":
        problems.append(f"SQLite's own check says: {check}")
    return Health(
        engine="SQLite",
        version=apsw.sqlite_lib_version(),
        schema=tx.value("PRAGMA user_version"),
        details=details,
        problems=tuple(problems),
    )
