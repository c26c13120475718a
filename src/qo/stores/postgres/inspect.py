"""inspect: bounded reads."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from operator import attrgetter, itemgetter
from typing import Any

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
    state_as_of,
)
from qo.core.queue import QueueSettings
from qo.core.scaling import DEMAND_LANES, Demand
from qo.core.verbs import DeadLettersWanted
from qo.stores.pages import PAGE_BYTES, too_much, within
from qo.stores.postgres import schema
from qo.stores.postgres.call import Call
from qo.stores.postgres.pool import READ_COMMITTED, Connection
from qo.stores.sealing import Stored, shown

SCAN_LIMIT = 10_000
"""How many messages a listing by state looks through at most."""
LIST_STEP = 1000


async def _rows(call: Call, sql: str, *values: Any) -> list[Any]:
    rows: list[Any] = await call.run("inspect", lambda connection, _: connection.fetch(sql, *values))
    return rows


async def queue(call: Call, name: str) -> QueueInfo:
    rows = await _rows(call, call.sql.queue, name)
    if rows:
        return _queue(rows[0])
    _, since = await _waiting(call, name)
    return _to_come(name, since)


async def queues(call: Call, after: str, limit: int) -> list[QueueInfo]:
    found = [_queue(row) for row in await _rows(call, call.sql.queues, after, limit)]
    found += [_to_come(name, since) for name, since in await _rows(call, call.sql.waiting_names, after, limit)]
    return sorted(found, key=attrgetter("name"))[:limit]


async def overview(call: Call, after: str, limit: int) -> list[QueueOverview]:
    rows = await _rows(call, call.sql.overview, after, limit, call.now, RATE_LENGTH, RATE_SCAN)
    return [QueueOverview(**dict(zip(QueueOverview.__struct_fields__, row, strict=True))) for row in rows]


async def _waiting(call: Call, name: str) -> tuple[int, datetime]:
    """What was enqueued, in users' transactions, for a queue that does not exist yet; and since when it waits."""
    [(count, since)] = await _rows(call, call.sql.waiting_in, name)
    if not count:
        raise NotFound(f"there is no queue '{name}'")
    return count, since


def _to_come(name: str, since: datetime) -> QueueInfo:
    """A queue that its first claim creates."""
    settings = QueueSettings()
    namespace, task = settings.names(name)
    return QueueInfo(name=name, namespace=namespace, task=task, settings=settings, paused=False, created_at=since)


def _queue(row: Any) -> QueueInfo:
    name, namespace, task, settings, paused, created_at = row
    return QueueInfo(
        name=name,
        namespace=namespace,
        task=task,
        settings=QueueSettings().changed(json.loads(settings)),
        paused=paused,
        created_at=created_at,
    )


async def group_of(call: Call, queue_name: str, group: str) -> tuple[int, int]:
    [row] = await _rows(call, call.sql.group_of, queue_name, group) or [None]
    if row is None:
        raise NotFound(f"there is no queue '{queue_name}'")
    if row[1] is None:
        raise NotFound(f"queue '{queue_name}' has no group '{group}'")
    return row[0], row[1]


async def queues_of(call: Call, lanes: Sequence[int], tokens: Sequence[str]) -> list[str]:
    """The queues of lanes, and of the lanes that tokens have leases on."""
    return [row[0] for row in await _rows(call, call.sql.queues_of, list(lanes), list(tokens))]


async def groups(call: Call, queue_name: str) -> list[GroupInfo]:
    [row] = await _rows(call, call.sql.group_of, queue_name, DEFAULT_GROUP) or [None]
    if row is None:
        _, since = await _waiting(call, queue_name)
        return [GroupInfo(name=DEFAULT_GROUP, start=Start(), created_at=since, claimed_at=None, lag=0)]
    return [_group(row) for row in await _rows(call, call.sql.groups, row[0])]


def _group(row: Any) -> GroupInfo:
    name, start_at, start_time, created_at, claimed_at, lag = row
    start = Start(StartAt(start_at), start_time)
    return GroupInfo(name=name, start=start, created_at=created_at, claimed_at=claimed_at, lag=lag)


async def depth(call: Call, queue_name: str, group: str) -> Depth:
    [row] = await _rows(call, call.sql.group_of, queue_name, group) or [None]
    if row is None and group == DEFAULT_GROUP:
        count, _ = await _waiting(call, queue_name)
        return Depth(ready=0, retrying=0, leased=0, delayed=count, dead=0, missed=0, oldest_at=None)
    _, group_id = await group_of(call, queue_name, group)

    async def read(connection: Connection, _: bool) -> tuple[Any, ...]:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            return (
                *(await connection.fetch(call.sql.ready, group_id))[0],
                *(await connection.fetch(call.sql.retrying, group_id))[0],
                *(await connection.fetch(call.sql.leased, group_id, call.now))[0],
                *(await connection.fetch(call.sql.counts, queue_name, group_id))[0],
            )

    ready, oldest, retrying, oldest_retry, leased, lost, delayed, dead_count, missed = await call.pool.call(
        read, own_transaction=True
    )
    ages = [time for time in (oldest, oldest_retry) if time is not None]
    return Depth(
        ready=ready + lost,
        retrying=retrying,
        leased=leased,
        delayed=delayed,
        dead=dead_count,
        missed=missed,
        oldest_at=min(ages, default=None),
    )


async def demand(call: Call, queues: Sequence[str], group: str, kinds: Collection[str] | None) -> Demand:
    listed = None if kinds is None else list(kinds)
    [row] = await _rows(call, call.sql.demand, list(queues), group, listed, call.now, DEMAND_LANES)
    in_lanes, lanes, others, running, oldest, rest = row
    return Demand(
        waiting=in_lanes + others,
        runnable=lanes + others,
        running=running,
        oldest_at=oldest,
        next_at=None if rest is None else call.store_now() + rest,
    )


async def lanes(call: Call, queue_name: str, group: str, after: int, limit: int) -> list[LaneInfo]:
    queue_id, group_id = await group_of(call, queue_name, group)
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
        for id, key, kind, priority, first, tail, state, position, leased in await _rows(
            call, call.sql.lanes, queue_id, group_id, after, limit
        )
    ]


async def jobs(call: Call, ids: Sequence[MessageId]) -> list[Job | None]:
    if len(ids) > 1:
        sizes = [row["size"] for row in await _rows(call, call.sql.job_sizes, list(ids))]
        fit, cut = within(sizes, int, PAGE_BYTES)
        if cut:
            raise too_much(len(fit))
    found = await _found(call, ids)
    return [found.get(id) for id in ids]


async def _found(call: Call, ids: Sequence[MessageId]) -> dict[bytes, Job]:
    rows = await _rows(call, call.sql.jobs_in_lanes, list(ids))
    if len(rows) < len(set(ids)):
        rows += await _rows(call, call.sql.jobs_in_intake, list(ids))
    now = call.store_now()
    await call.keys.learn([row["headers"] for row in rows])
    return {row["id"]: _job(call, row, now) for row in rows}


def _shown(
    call: Call, queue_name: str, key: str | None, payload: bytes, headers: str | None
) -> tuple[bytes, Mapping[str, str]]:
    stored = Stored(queue_name, key, None, payload, json.loads(headers) if headers else {})
    return shown(call.keys.to_open, stored)


def _job(call: Call, row: Any, now: datetime) -> Job:
    (id, queue_name, kind, key, state, attempt, _, created_at, due_at, owner, lease_expires_at, heartbeat_at,
     started_at, finished_at, reason, error, result, payload, headers, *_) = row  # fmt: skip
    payload, said = _shown(call, queue_name, key, payload, headers)
    job = Job(
        id=id_text(id),
        queue=queue_name,
        kind=kind,
        key=key,
        state=None if state is None else JobState(state),
        attempt=attempt,
        payload=payload,
        headers=said,
        created_at=created_at,
        due_at=due_at,
        lease_owner=owner,
        lease_expires_at=lease_expires_at,
        heartbeat_at=heartbeat_at,
        started_at=started_at,
        finished_at=finished_at,
        reason=reason,
        error=error,
        result=result,
    )
    return as_of(job, now)


async def list_jobs(call: Call, queue_name: str, state: JobState | None, before: str | None, limit: int) -> list[Job]:
    [row] = await _rows(call, call.sql.group_of, queue_name, DEFAULT_GROUP) or [None]
    if row is None:
        await _waiting(call, queue_name)
    queue_id = None if row is None else row[0]
    end = b"\xff" * 16 if before is None else checked_id("before", before)

    many = limit if state is None else SCAN_LIMIT
    ids = [row[0] for row in await _rows(call, call.sql.newest, queue_id, end, many, queue_name)]
    now = call.store_now()
    listed: list[tuple[MessageId, int]] = []
    for start in range(0, len(ids), LIST_STEP):
        rows = await _rows(call, call.sql.job_sizes, ids[start : start + LIST_STEP])
        listed += [(row["id"], row["size"]) for row in rows if _is_in(state, row, now)]
        if len(listed) >= limit:
            break
    page, _ = within(listed[:limit], itemgetter(1), PAGE_BYTES)
    found = await _found(call, [id for id, _ in page]) if page else {}
    return [found[id] for id, _ in page if id in found]


def _is_in(state: JobState | None, row: Any, now: datetime) -> bool:
    """Whether a job that is stored in one state is in another by now, and that is the one asked for."""
    if row["state"] is None or state is None:
        return state is None
    return state_as_of(JobState(row["state"]), row["lease_expires_at"], now) == state


async def events(call: Call, id: MessageId) -> list[Event]:
    rows = await _rows(call, call.sql.events, id)
    return [Event(at=at, state=JobState(state), detail=detail) for at, state, detail in rows]


async def dead(call: Call, queue_name: str, group: str | None, after: str | None, limit: int) -> list[DeadLetter]:
    queue_id, _ = await group_of(call, queue_name, DEFAULT_GROUP)
    start = bytes(16) if after is None else checked_id("after", after)
    return await _letters(call, await _rows(call, call.sql.dead, queue_id, start, group, limit, PAGE_BYTES))


async def dead_letters(call: Call, wanted: DeadLettersWanted) -> tuple[list[DeadLetter], int]:
    chosen = (wanted.queue, wanted.group, wanted.key, wanted.since, wanted.until, wanted.name)
    rows = await _rows(call, call.sql.dead_letters, *chosen, wanted.limit, wanted.offset, PAGE_BYTES)
    count: int = await call.value("dead_letters", call.sql.count_dead_letters, *chosen)
    return await _letters(call, rows), count


async def _letters(call: Call, rows: Sequence[Any]) -> list[DeadLetter]:
    await call.keys.learn([row["headers"] for row in rows])
    return [_letter(call, row) for row in rows]


def _letter(call: Call, row: Any) -> DeadLetter:
    (id, queue_name, group, key, kind, priority, payload, headers, attempts, losses, reason, error, created_at,
     died_at, *_) = row  # fmt: skip
    payload, said = _shown(call, queue_name, key, payload, headers)
    return DeadLetter(
        id=id_text(id),
        queue=queue_name,
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
        created_at=created_at,
        died_at=died_at,
    )


async def group_places(call: Call, group: str | None, limit: int) -> list[GroupPlace]:
    rows = await _rows(call, call.sql.group_places, group, limit)
    return [GroupPlace(queue=row[0], info=_group(row[2:]), oldest_at=row[1]) for row in map(tuple, rows)]


async def health(call: Call) -> Health:
    names = ("queues", "lanes", "messages", "in intake", "live leases", "dead letters")
    [totals] = await _rows(call, call.sql.totals)
    details = dict(zip(names, map(str, totals), strict=True))
    details["schema"] = call.address.schema
    details["woken by"] = "polling" if call.listener.must_poll else "notifications"
    [(version, fsync, synchronous, standby)] = await _rows(call, call.sql.server)
    for holder, group, count in await _rows(call, call.sql.holding):
        details["holds most back"] = f"group '{group}' of queue '{holder}': {count} messages"
    problems = [
        f"group '{group}' of queue '{name}' missed {count} messages that were removed before it came for them"
        for name, group, count in await _rows(call, call.sql.missed)
    ]
    if fsync == "off" or synchronous == "off":
        problems.append(
            f"fsync is {fsync} and synchronous_commit is {synchronous}: a crash may lose what was acknowledged"
        )
    default = call.pool.default_isolation
    details["isolation"] = READ_COMMITTED
    if default != READ_COMMITTED:
        details["isolation"] += (
            f", which qo says in each transaction (the default is {default}): two more round trips a call"
        )
    if standby:
        problems.append("this server is a standby: it cannot be written to")
    number = await call.pool.call(lambda connection, _: schema.version(connection, call.address.schema))
    return Health(engine="PostgreSQL", version=version, schema=number, details=details, problems=tuple(problems))
