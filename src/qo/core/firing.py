"""Firing: what is done for a schedule at one time. Pure: a schedule and the time in, what to push, and the schedule
after it, out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import NamedTuple

import msgspec

from qo.core.errors import Invalid, QoError, TooLarge
from qo.core.message import OWN_PREFIX
from qo.core.moments import checked_time
from qo.core.names import checked_key
from qo.core.outcome import JobState
from qo.core.schedule import (
    FIRED_BY_HEADER,
    RUNS_KEPT,
    SCHEDULE_HEADER,
    SLOT_HEADER,
    TEXT_LIMIT,
    CatchUp,
    Coming,
    FiredBy,
    Overlap,
    Plan,
    Run,
    Schedule,
    Skipped,
    checked_plan,
    checked_text,
    slot_text,
    timetable,
)
from qo.core.slots import LEAST_EVERY, Timetable, jitter_of

LATE_AFTER = timedelta(seconds=60)
"""A slot that was not fired for so long was missed: `catch_up` says what becomes of it."""
FIRES_AT_ONCE = 100
"""Slots of one schedule that one commit deals with."""
UNFINISHED_KEPT = 1000
"""Jobs of one schedule whose ends are looked for."""
RESERVED = ("pause", "resume")
PREVIEW_LIMIT = 1000
BACKFILL_LIMIT = 1000


class Fire(NamedTuple):
    """A slot that becomes a job."""

    slot: datetime
    by: FiredBy
    label: str | None = None
    call: str | None = None


class Step(NamedTuple):
    """What is to be done for a schedule at one time. Jobs are canceled first, then its fires are pushed."""

    schedule: Schedule
    fires: tuple[Fire, ...] = ()
    cancel: tuple[str, ...] = ()


def new_schedule(name: str, id: str, plan: Plan, now: datetime) -> Schedule:
    checked_key("name", name)
    if name in RESERVED:
        raise Invalid("name", f"must not be {' or '.join(RESERVED)}: paths of the server have these words in its place")
    checked_plan(name, plan, now)
    return _moved_on(Schedule(name=name, id=id, plan=plan, created_at=now, changed_at=now, after=now))


def replanned(schedule: Schedule, plan: Plan, now: datetime) -> Schedule:
    """The schedule under another plan. That causes no run: it goes on with slots from now on, and with the one that is
    due already or waits for its jitter, if that is a slot of the new plan, too.
    """
    changed = msgspec.structs.replace(schedule, plan=checked_plan(schedule.name, plan, now), changed_at=now)
    pending = schedule.next_slot
    if pending is None:
        return _moved_on(msgspec.structs.replace(changed, after=max(now, schedule.after)))
    if _times_of(plan) == _times_of(schedule.plan):
        return _moved_on(changed)
    if pending <= now:
        before = pending - timedelta(microseconds=1)
        if (
            schedule.due_at is not None
            and schedule.due_at > now
            and timetable(schedule.name, plan).next_after(before) == pending
        ):
            return _moved_on(msgspec.structs.replace(changed, after=before))
        changed = _noted(changed, Run(slot=pending, at=now, skipped=Skipped.EDITED, until=now))
    return _moved_on(msgspec.structs.replace(changed, after=max(now, schedule.after)))


def _times_of(plan: Plan) -> tuple[object, ...]:
    return (
        plan.specs,
        plan.exclude,
        plan.timezone,
        plan.dst_gap,
        plan.dst_fold,
        plan.jitter_seconds,
        plan.starts_at,
        plan.ends_at,
    )


def with_pause(schedule: Schedule, paused: bool, note: str | None, now: datetime) -> Schedule:
    """The schedule paused, or going on with slots from now on."""
    note = checked_text("note", note)
    if paused:
        return msgspec.structs.replace(schedule, paused=True, note=note, changed_at=now, next_slot=None, due_at=None)
    if not schedule.paused:
        return schedule
    missed = timetable(schedule.name, schedule.plan).next_after(schedule.after)
    if missed is not None and missed <= now:
        schedule = _noted(schedule, Run(slot=missed, at=now, skipped=Skipped.PAUSED, until=now))
    after = max(now, schedule.after)
    return _moved_on(
        msgspec.structs.replace(schedule, paused=False, note=note, changed_at=now, failures=0, after=after)
    )


def _moved_on(schedule: Schedule) -> Schedule:
    """The schedule with its next slot after `after`. One whose next slot cannot be found is paused, and says why."""
    plan, slot = schedule.plan, None
    if not schedule.paused and (plan.runs_limit is None or schedule.fired < plan.runs_limit):
        slot = timetable(schedule.name, plan).next_after(schedule.after)
    due_at = None if slot is None else slot + jitter_of(schedule.name, slot, plan.jitter_seconds)
    return msgspec.structs.replace(schedule, next_slot=slot, due_at=due_at)


def _noted(schedule: Schedule, *runs: Run) -> Schedule:
    """The schedule with runs in its history, the last given newest."""
    skipped = sum(run.skipped is not None for run in runs)
    kept = (*reversed(runs), *schedule.runs)[:RUNS_KEPT]
    return msgspec.structs.replace(schedule, runs=kept, skipped=schedule.skipped + skipped)


def step(schedule: Schedule, now: datetime, states: Mapping[str, JobState | None]) -> Step:
    """What is due of a schedule. `states` are those of its unfinished jobs; one that is not known is finished."""
    try:
        schedule = _seen(schedule, states)
        threshold = schedule.plan.failure_threshold
        if threshold is not None and schedule.failures >= threshold:
            return Step(
                with_pause(schedule, True, f"{schedule.failures} jobs in a row failed (failure_threshold)", now)
            )
        return _step(schedule, now)
    except Invalid as error:
        return Step(with_pause(schedule, True, f"its next slot cannot be found: {error}"[:TEXT_LIMIT], now))


def _seen(schedule: Schedule, states: Mapping[str, JobState | None]) -> Schedule:
    """The schedule after a look at its jobs."""
    left, failures = [], schedule.failures
    for id in schedule.unfinished:
        state = states.get(id)
        if state is not None and not state.finished:
            left.append(id)
        elif state is JobState.FAILED:
            failures += 1
        elif state is JobState.SUCCEEDED:
            failures = 0
    return msgspec.structs.replace(schedule, unfinished=tuple(left), failures=failures)


def _step(schedule: Schedule, now: datetime) -> Step:
    plan = schedule.plan
    schedule, slots = _due_slots(schedule, now)
    room = FIRES_AT_ONCE if plan.runs_limit is None else max(0, plan.runs_limit - schedule.fired)
    fires: list[Fire] = []
    cancel: tuple[str, ...] = ()
    runs: list[Run] = []
    running = len(schedule.unfinished)
    for slot, by in slots:
        if len(fires) == room:
            break
        schedule = msgspec.structs.replace(schedule, after=slot)
        if plan.overlap is Overlap.CANCEL_OTHER:
            runs += (Run(slot=each.slot, at=now, skipped=Skipped.OVERLAP) for each in fires)
            cancel, fires = schedule.unfinished, [Fire(slot, by)]
        elif running + len(fires) >= _MOST_AT_ONCE.get(plan.overlap, 1 << 60):
            runs.append(Run(slot=slot, at=now, skipped=Skipped.OVERLAP))
        else:
            fires.append(Fire(slot, by))
    schedule = msgspec.structs.replace(_noted(schedule, *runs), fired=schedule.fired + len(fires))
    return Step(_moved_on(schedule), tuple(fires), cancel)


_MOST_AT_ONCE = {Overlap.SKIP: 1, Overlap.BUFFER_ONE: 2}
"""Jobs of one schedule that may be unfinished: those of buffered slots wait in a lane of their own."""


def _due_slots(schedule: Schedule, now: datetime) -> tuple[Schedule, list[tuple[datetime, FiredBy]]]:
    """Slots to fire, in order: missed ones as `catch_up` says, then those that are due now."""
    plan, table = schedule.plan, timetable(schedule.name, schedule.plan)
    late_line = now - LATE_AFTER - timedelta(seconds=plan.jitter_seconds)
    found: list[tuple[datetime, FiredBy]] = []
    if schedule.next_slot is not None and schedule.next_slot <= late_line:
        schedule, late = _missed(schedule, table, late_line, now)
        found = [(slot, FiredBy.CATCH_UP) for slot in late]
    else:
        schedule = msgspec.structs.replace(schedule, caught_up=0)
    for slot in table.slots(found[-1][0] if found else schedule.after):
        is_due = slot + jitter_of(schedule.name, slot, plan.jitter_seconds) <= now
        if not is_due or slot <= late_line or len(found) == FIRES_AT_ONCE:
            break
        found.append((slot, FiredBy.SCHEDULE))
    return schedule, found


def _missed(
    schedule: Schedule, table: Timetable, late_line: datetime, now: datetime
) -> tuple[Schedule, list[datetime]]:
    """Missed slots that are to be made up for; the schedule stands before the first of them, or behind all."""
    plan, first = schedule.plan, schedule.next_slot
    assert first is not None
    kept: list[datetime] = []
    start = max(schedule.after, now - timedelta(seconds=plan.catch_up_window))
    if plan.catch_up is CatchUp.ALL:
        room = min(FIRES_AT_ONCE, plan.catch_up_limit - schedule.caught_up)
        kept = _first(room, takewhile(lambda slot: slot <= late_line, table.slots(start)))
    elif plan.catch_up is CatchUp.LAST:
        last = _last_before(table, start, late_line)
        kept = [] if last is None else [last]
    end = kept[0] if kept else late_line
    if first < end or not kept:
        schedule = _noted(schedule, Run(slot=first, at=now, skipped=Skipped.MISSED, until=end))
    after = end - timedelta(microseconds=1) if kept else end
    return msgspec.structs.replace(schedule, after=after, caught_up=schedule.caught_up + len(kept)), kept


def _first(count: int, slots: Iterable[datetime]) -> list[datetime]:
    return list(islice(slots, max(count, 0)))


def _last_before(table: Timetable, after: datetime, until: datetime) -> datetime | None:
    """The last slot after one time and up to another; looked for in halves."""

    def following(time: datetime) -> datetime | None:
        slot = table.next_after(time)
        return slot if slot is not None and slot <= until else None

    if (last := following(after)) is None:
        return None
    end = until
    while end - last > LEAST_EVERY:
        middle = last + (end - last) / 2
        slot = following(middle)
        if slot is None:
            end = middle
        else:
            last = slot
    return max([last, *takewhile(lambda slot: slot <= until, table.slots(last))])


def runs_of(fires: Sequence[tuple[Fire, str]], now: datetime) -> list[Run]:
    """What became of slots that became jobs, which are given by their ids."""
    return [Run(slot=fire.slot, at=now, by=fire.by, job=job, label=fire.label, call=fire.call) for fire, job in fires]


def fired(schedule: Schedule, fires: Sequence[tuple[Fire, str]], now: datetime) -> Schedule:
    """The schedule with the jobs of its fires in its history."""
    schedule = _noted(schedule, *runs_of(fires, now))
    if not schedule.plan.follows_jobs:
        return schedule
    unfinished = (*schedule.unfinished, *(job for _, job in fires))[-UNFINISHED_KEPT:]
    return msgspec.structs.replace(schedule, unfinished=unfinished)


def refused(schedule: Schedule, fires: Sequence[Fire], error: QoError, now: datetime) -> Schedule:
    """The schedule after the store refused its messages: their slots are skipped, which counts as failures."""
    reason = str(error)[: TEXT_LIMIT // 2]
    runs = [Run(slot=each.slot, at=now, by=each.by, skipped=Skipped.REFUSED, error=reason) for each in fires]
    schedule = _noted(schedule, *runs)
    failures, threshold = schedule.failures + len(fires), schedule.plan.failure_threshold
    schedule = _moved_on(
        msgspec.structs.replace(schedule, failures=failures, fired=max(0, schedule.fired - len(fires)))
    )
    if threshold is not None and failures >= threshold:
        return with_pause(schedule, True, f"its message was refused {failures} times in a row: {reason}", now)
    return schedule


def headers_of(schedule: Schedule, fire: Fire) -> Mapping[str, str]:
    """The headers of a fire's message: the target's, and which slot it is."""
    own = {SCHEDULE_HEADER: schedule.name, SLOT_HEADER: slot_text(fire.slot), FIRED_BY_HEADER: fire.by.value}
    return {**(schedule.plan.target.headers or {}), **own}


def key_of(schedule: Schedule) -> str | None:
    """The key of its messages. Those of buffered slots come one after the other, so they have one in any case."""
    plan = schedule.plan
    if plan.target.key is None and plan.overlap in (Overlap.BUFFER_ONE, Overlap.BUFFER_ALL):
        return f"{OWN_PREFIX}schedule {schedule.id}"
    return plan.target.key


def backfilled(schedule: Schedule, begin: datetime, end: datetime) -> list[datetime]:
    """The slots from one time to before another, whatever became of them when they were due."""
    checked_time("begin", begin)
    checked_time("end", end)
    if end <= begin:
        raise Invalid("end", "must be later than begin")
    slots = timetable(schedule.name, schedule.plan).slots(begin - timedelta(microseconds=1))
    found = _first(BACKFILL_LIMIT + 1, takewhile(lambda slot: slot < end, slots))
    if len(found) > BACKFILL_LIMIT:
        raise TooLarge(
            "end", f"at most {BACKFILL_LIMIT} slots are made up for at once; there are more before that time"
        )
    return found


def preview(schedule: Schedule, count: int, after: datetime | None = None) -> list[Coming]:
    """The next slots, as they will fire if nothing changes."""
    if type(count) is not int or not 1 <= count <= PREVIEW_LIMIT:
        raise Invalid("count", f"must be a whole number from 1 to {PREVIEW_LIMIT}, not {count!r}")
    if after is not None:
        after = checked_time("after", after)
    plan = schedule.plan
    left = count if plan.runs_limit is None else min(count, plan.runs_limit - schedule.fired)
    found: list[Coming] = []
    for slot in _first(left, timetable(schedule.name, plan).slots(after or schedule.after)):
        fires_at = slot + jitter_of(schedule.name, slot, plan.jitter_seconds)
        found.append(Coming(slot, max(fires_at, found[-1].fires_at) if found else fires_at))
    return found
