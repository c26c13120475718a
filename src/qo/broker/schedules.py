"""schedules: rules that push when they are due. Each is a record; `scheduler` fires them."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from qo.core.durations import duration
from qo.core.errors import AlreadyExists, Conflict, Invalid, NotFound, RolledBack, TooLarge
from qo.core.firing import (
    Fire,
    backfilled,
    fired,
    headers_of,
    key_of,
    new_schedule,
    preview,
    replanned,
    runs_of,
    with_pause,
)
from qo.core.lease import Done, Obstacle, Unit
from qo.core.message import MessageId, NewMessage, checked_id, id_text
from qo.core.names import checked_key, suggestion
from qo.core.outcome import JobState
from qo.core.record import ABSENT, LIST_LIMIT, Put, Record, checked_limit
from qo.core.schedule import (
    RECORD_KIND,
    Coming,
    FiredBy,
    Plan,
    Run,
    RunInfo,
    Schedule,
    ScheduleInfo,
    checked_text,
    timetable,
)
from qo.core.verbs import Engine

log = logging.getLogger("qo.broker")

SHOWN_SLOTS = 5
JOBS_AT_ONCE = 500
TRIES = 10
"""How often a change is made again that another one came before."""

_decode = msgspec.json.Decoder(Schedule).decode
_encode = msgspec.json.Encoder().encode


class Kept(NamedTuple):
    """A schedule, and the version of its record."""

    schedule: Schedule
    version: int

    def put(self, changed: Schedule) -> Put:
        """The change of its record, if nobody else changes it first."""
        return _put(changed, self.version)


def _put(schedule: Schedule, expected: int) -> Put:
    return Put(kind=RECORD_KIND, name=schedule.name, body=_encode(schedule), due_at=schedule.due_at, expected=expected)


def kept_or_none(record: Record) -> Kept | None:
    """The schedule of a record; None if that cannot be read, because a newer qo wrote it."""
    try:
        return Kept(_decode(record.body), record.version)
    except (msgspec.DecodeError, Invalid):
        return None


class Messages:
    """The messages that schedules push."""

    def __init__(self, new_ids: Callable[[int], Sequence[MessageId]]) -> None:
        self._new_ids = new_ids

    def of(self, schedule: Schedule, fires: Sequence[Fire]) -> list[NewMessage]:
        target, key = schedule.plan.target, key_of(schedule)
        ttl = None if target.ttl is None else duration("target.ttl", target.ttl)
        return [
            NewMessage(
                id,
                target.queue,
                target.payload,
                target.kind,
                key,
                target.priority,
                headers_of(schedule, fire),
                ttl=ttl,
            )
            for id, fire in zip(self._new_ids(len(fires)), fires, strict=True)
        ]


def with_jobs(fires: Sequence[Fire], messages: Sequence[NewMessage]) -> list[tuple[Fire, str]]:
    return [(fire, id_text(message.id)) for fire, message in zip(fires, messages, strict=True)]


async def job_states(store: Engine, ids: Sequence[str]) -> dict[str, JobState | None]:
    """How jobs stand, by their ids; those that are not known are left out."""
    found: dict[str, JobState | None] = {}
    size, start = JOBS_AT_ONCE, 0
    while start < len(ids):
        part = [checked_id("id", each) for each in ids[start : start + size]]
        try:
            jobs = await store.jobs(part)
        except TooLarge:  # their payloads are more than one answer may have
            if size == 1:
                raise
            size = max(size // 4, 1)
            continue
        found |= {job.id: job.state for job in jobs if job is not None}
        start += len(part)
    return found


class ScheduleRecords:
    """The verbs that arrange schedules."""

    def __init__(self, store: Engine, new_ids: Callable[[int], Sequence[MessageId]]) -> None:
        self._store = store
        self._messages = Messages(new_ids)

    async def create_schedule(self, name: str, plan: Plan, *, nonce: str | None = None) -> ScheduleInfo:
        schedule = self._new(name, plan)
        try:
            version = await self._store.put_record(_put(schedule, ABSENT), nonce=nonce)
        except AlreadyExists:
            raise AlreadyExists(f"there is a schedule '{name}' already") from None
        return await self._shown(Kept(schedule, version))

    async def put_schedule(self, name: str, plan: Plan) -> tuple[bool, ScheduleInfo]:
        for _ in range(TRIES):
            known = await self._find(name)
            if known is None:
                schedule, expected = self._new(name, plan), ABSENT
            elif known.schedule.plan == plan:
                return False, await self._shown(known)
            else:
                schedule, expected = replanned(known.schedule, plan, self._store.store_now()), known.version
            try:
                version = await self._store.put_record(_put(schedule, expected))
            except Conflict:
                continue
            return known is None, await self._shown(Kept(schedule, version))
        raise Conflict(f"schedule '{name}' is changed by others all the time")

    async def change_schedule(self, name: str, changes: Mapping[str, Any], expected: int | None = None) -> ScheduleInfo:
        for field in changes:
            if field not in Plan.__struct_fields__:
                raise Invalid(field, "is not known" + suggestion(field, Plan.__struct_fields__))

        def change(schedule: Schedule) -> Schedule:
            plan = msgspec.structs.replace(schedule.plan, **changes)
            return replanned(schedule, plan, self._store.store_now())

        return await self._shown(await self._change(name, change, expected))

    async def schedule(self, name: str) -> ScheduleInfo:
        return await self._shown(await self._existing(name))

    async def schedules(self, after: str, limit: int, tag: str | None) -> Sequence[ScheduleInfo]:
        found = [each async for each in self._each(after, checked_limit(limit), tag)]
        jobs = [run.job for kept in found for run in kept.schedule.runs[:1] if run.job is not None]
        states = await job_states(self._store, jobs)
        return [_shown(kept, states, runs=1) for kept in found]

    async def delete_schedule(self, name: str) -> bool:
        return await self._store.delete_record(RECORD_KIND, name)

    async def run_schedule(self, name: str, label: str | None = None, *, nonce: str | None = None) -> Run:
        fire = Fire(self._store.store_now(), FiredBy.MANUAL, checked_text("label", label))
        [run] = await self._push(name, [fire], nonce)
        return run

    async def backfill_schedule(
        self, name: str, begin: datetime, end: datetime, label: str | None = None, *, nonce: str | None = None
    ) -> Sequence[Run]:
        known = await self._existing(name)
        label = checked_text("label", label)
        fires = [Fire(slot, FiredBy.BACKFILL, label) for slot in backfilled(known.schedule, begin, end)]
        return await self._push(name, fires, nonce) if fires else []

    async def pause_schedules(
        self, names: Sequence[str] | None, tag: str | None, paused: bool, note: str | None = None
    ) -> int:
        if (names is None) == (tag is None):
            raise Invalid("names", "give names, or a tag")
        if names is None:
            names = [kept.schedule.name async for kept in self._each("", None, tag)]
        now = self._store.store_now()
        count = 0
        for name in names:
            before = await self._existing(name)
            if before.schedule.paused != paused:
                await self._change(name, lambda schedule: with_pause(schedule, paused, note, now), None)
                count += 1
        return count

    async def preview_schedule(
        self, name: str, plan: Plan | None, count: int, after: datetime | None = None
    ) -> Sequence[Coming]:
        schedule = (await self._existing(name)).schedule if plan is None else self._new(name, plan)
        return preview(schedule, count, after)

    def _new(self, name: str, plan: Plan) -> Schedule:
        return new_schedule(name, secrets.token_hex(8), plan, self._store.store_now())

    async def _find(self, name: str) -> Kept | None:
        record = await self._store.record(RECORD_KIND, checked_key("name", name))
        if record is None:
            return None
        kept = kept_or_none(record)
        if kept is None:
            raise Conflict(f"schedule '{name}' cannot be read by this version of qo; delete it, or use a newer one")
        return kept

    async def _existing(self, name: str) -> Kept:
        found = await self._find(name)
        if found is None:
            raise NotFound(f"there is no schedule '{name}'")
        return found

    async def _each(self, after: str, limit: int | None, tag: str | None) -> Any:
        """Schedules by name, with that tag if one is given."""
        left = limit
        while left is None or left > 0:
            page = await self._store.records(RECORD_KIND, after, LIST_LIMIT if tag or left is None else left)
            for record in page:
                kept = kept_or_none(record)
                if kept is None:
                    continue
                if tag is None or tag in kept.schedule.plan.tags:
                    yield kept
                    left = None if left is None else left - 1
                    if left == 0:
                        return
            if not page:
                return
            after = page[-1].name

    async def _change(self, name: str, change: Callable[[Schedule], Schedule], expected: int | None) -> Kept:
        for _ in range(TRIES):
            known = await self._existing(name)
            if expected is not None and known.version != expected:
                raise Conflict(f"schedule '{name}' has changed: it is at version {known.version}, not {expected}")
            changed = change(known.schedule)
            try:
                return Kept(changed, await self._store.put_record(known.put(changed)))
            except Conflict:
                continue
        raise Conflict(f"schedule '{name}' is changed by others all the time")

    async def _push(self, name: str, fires: Sequence[Fire], nonce: str | None) -> list[Run]:
        """Push for slots that a person asked for, whatever else is under way. A call that is repeated gets the runs of
        the first one, as long as the schedule remembers them.
        """
        call = None if nonce is None else hashlib.sha256(nonce.encode()).hexdigest()[:16]
        fires = [fire._replace(call=call) for fire in fires]
        for _ in range(TRIES):
            known, now = await self._existing(name), self._store.store_now()
            before = [run for run in known.schedule.runs if call is not None and run.call == call]
            if before:
                return before[::-1]
            messages = self._messages.of(known.schedule, fires)
            jobs = with_jobs(fires, messages)
            changed = fired(known.schedule, jobs, now)
            [answer] = await self._store.transact([Unit(pushes=tuple(messages), records=(known.put(changed),))])
            if isinstance(answer, Done):
                return runs_of(jobs, now)
            if answer.obstacle is not Obstacle.RECORD:
                raise RolledBack(answer.reason, item=answer.item, obstacle=answer.obstacle)
        raise Conflict(f"schedule '{name}' is changed by others all the time")

    async def _shown(self, kept: Kept) -> ScheduleInfo:
        jobs = [run.job for run in kept.schedule.runs if run.job is not None]
        return _shown(kept, await job_states(self._store, jobs))


def _shown(kept: Kept, states: Mapping[str, JobState | None], runs: int | None = None) -> ScheduleInfo:
    schedule = kept.schedule
    try:
        rule, coming = timetable(schedule.name, schedule.plan).in_words(), preview(schedule, SHOWN_SLOTS)
    except (Invalid, OverflowError) as error:
        rule, coming = f"cannot be computed: {error}", []
    return ScheduleInfo(
        name=schedule.name,
        id=schedule.id,
        version=kept.version,
        plan=schedule.plan,
        rule=rule,
        paused=schedule.paused,
        note=schedule.note,
        created_at=schedule.created_at,
        changed_at=schedule.changed_at,
        coming=() if schedule.paused else tuple(coming),
        fired=schedule.fired,
        skipped=schedule.skipped,
        failures=schedule.failures,
        runs=tuple(
            RunInfo(**msgspec.structs.asdict(run), outcome=states.get(run.job) if run.job else None)
            for run in schedule.runs[:runs]
        ),
        error=next((run.error for run in schedule.runs if run.error is not None), None),
    )
