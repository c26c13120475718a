"""scheduler: fires schedules when they are due. Whichever process sees one due first fires it.

Firing a slot and moving the schedule on is one unit: the pushes, and the record with its next
version. Of two processes that fire the same schedule the second finds another version, and
stops. So a slot fires once, with any number of processes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from qo.broker.clock import Clock, StoreTimes
from qo.broker.schedules import Kept, Messages, job_states, kept_or_none, with_jobs
from qo.broker.service import Service
from qo.core.errors import Conflict, Invalid, QoError, TooLarge
from qo.core.firing import Step, fired, refused, step, with_pause
from qo.core.lease import Done, Obstacle, Undone, Unit
from qo.core.message import MessageId, NewMessage, checked_id
from qo.core.names import DEFAULT_GROUP
from qo.core.record import LIST_LIMIT, Put, Record
from qo.core.schedule import RECORD_KIND
from qo.core.verbs import Engine

log = logging.getLogger("qo.broker")

UNIT_RECORDS = 500
UNIT_PUSHES = 1000
UNIT_BYTES = 8 * 1024 * 1024


class Ready(NamedTuple):
    """A schedule that is about to fire: as it was read, what is to be done, and the messages of its fires."""

    kept: Kept
    step: Step
    messages: tuple[NewMessage, ...]

    @property
    def size(self) -> int:
        return sum(len(message.payload) for message in self.messages)


class Scheduler(Service):
    """Fires schedules when they are due: one look for each time at which something is, and none in between."""

    name = "schedules"
    ticks_first = True

    def __init__(
        self, store: Engine, clock: Clock, times: StoreTimes, new_ids: Callable[[int], Sequence[MessageId]]
    ) -> None:
        super().__init__(clock)
        self._store = store
        self._times = times
        self._messages = Messages(new_ids)
        self.cap: timedelta | None = None
        """Look at least so often while a schedule is active; None: when one is due."""
        self.fired = 0
        """Slots that this process made jobs of."""

    async def tick(self) -> datetime | None:
        while True:
            due = await self._store.due_records(RECORD_KIND, LIST_LIMIT)
            if not due.records:
                again = self._times.here(due.next_at)
                return again if again is None or self.cap is None else min(again, self.clock.now() + self.cap)
            readable = []
            for record in due.records:
                kept = kept_or_none(record)
                if kept is None:
                    await self._put_aside(record)
                else:
                    readable.append(kept)
            if readable:
                await self._fire(readable)

    async def _put_aside(self, record: Record) -> None:
        """Let what cannot be read be due no more: it would stop all others."""
        log.error("schedule '%s' cannot be read by this version of qo, and fires no more", record.name)
        with contextlib.suppress(Conflict):
            await self._store.put_record(
                Put(kind=record.kind, name=record.name, body=record.body, expected=record.version)
            )

    async def _fire(self, due: Sequence[Kept]) -> None:
        now = max(self._store.store_now(), *(kept.schedule.due_at for kept in due if kept.schedule.due_at is not None))
        followed = [id for kept in due if kept.schedule.plan.follows_jobs for id in kept.schedule.unfinished]
        states = await job_states(self._store, followed) if followed else {}
        ready = [self._ready(kept, step(kept.schedule, now, states), now) for kept in due]
        for part in _parts(ready):
            if not await self._do(part, now):
                return  # others fire them too: see what they left

    def _ready(self, kept: Kept, to_do: Step, now: datetime) -> Ready:
        try:
            return Ready(kept, to_do, tuple(self._messages.of(to_do.schedule, to_do.fires)))
        except Invalid as error:
            return Ready(kept, Step(refused(to_do.schedule, to_do.fires, error, now)), ())

    async def _do(self, part: Sequence[Ready], now: datetime) -> bool:
        """Push and move on, all in one unit; then cancel what gives way. Whether nobody else was at it."""
        pushes = tuple(message for each in part for message in each.messages)
        changes = tuple(_change_of(each, now) for each in part)
        [answer] = await self._store.transact([Unit(pushes=pushes, records=changes)])
        if isinstance(answer, Done):
            self.fired += len(pushes)
            cancel = [checked_id("id", id) for each in part for id in each.step.cancel]
            if cancel:
                await self._store.cancel(cancel, DEFAULT_GROUP)
            return True
        if answer.obstacle is Obstacle.RECORD:
            return False
        return await self._do_less(part, answer, now)

    async def _do_less(self, part: Sequence[Ready], answer: Undone, now: datetime) -> bool:
        """After a message was refused: each half by itself, and a single schedule without its messages."""
        if len(part) > 1:
            middle = len(part) // 2
            return await self._do(part[:middle], now) and await self._do(part[middle:], now)
        [one] = part
        log.warning("schedule '%s' could not push: %s", one.kept.schedule.name, answer.reason)
        error = QoError(answer.reason)
        return await self._do([Ready(one.kept, Step(refused(one.step.schedule, one.step.fires, error, now)), ())], now)


def _change_of(ready: Ready, now: datetime) -> Put:
    """The record after its fires. One that has become too large forgets its history, and is paused."""
    changed = fired(ready.step.schedule, with_jobs(ready.step.fires, ready.messages), now)
    try:
        return ready.kept.put(changed)
    except TooLarge as error:
        bare = msgspec.structs.replace(changed, runs=(), unfinished=())
        return ready.kept.put(with_pause(bare, True, f"its record was too large: {error}", now))


def _parts(ready: Sequence[Ready]) -> list[list[Ready]]:
    """Schedules as they go into units, of bounded size."""
    parts: list[list[Ready]] = []
    pushes = size = 0
    for each in ready:
        pushes, size = pushes + len(each.messages), size + each.size
        full = not parts or len(parts[-1]) == UNIT_RECORDS or pushes > UNIT_PUSHES or size > UNIT_BYTES
        if full:
            parts.append([])
            pushes, size = len(each.messages), each.size
        parts[-1].append(each)
    return parts
