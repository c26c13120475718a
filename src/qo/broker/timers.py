"""timers: housekeeping at its time; and while someone waits, whether others wrote and whether hints still come."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import datetime, timedelta

from qo.broker.clock import Clock, StoreTimes, Timer
from qo.core.errors import QoError
from qo.core.polling import PollingStrategy
from qo.core.verbs import Store

log = logging.getLogger("qo.broker")

TIDY_AFTER_TRAFFIC = timedelta(seconds=60)
TIDY_STEP_REST = timedelta(milliseconds=50)


class Housekeeping:
    """Tidies when the store said that it is due, or a minute after traffic; never in a loop."""

    def __init__(self, store: Store, clock: Clock, times: StoreTimes) -> None:
        self._store = store
        self._clock = clock
        self._times = times
        self._due: datetime | None = None
        self._timer: Timer | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._expected = False
        """Whether it will run within a minute because of traffic."""

    def start(self) -> None:
        """Look once, to learn when there will be something to do."""
        self._due_at(self._clock.now())

    def traffic(self) -> None:
        """Something was written: there will be something to tidy. Called for every write, so it is short."""
        if not self._expected and self._task is None:
            self._expected = True
            self._due_at(self._clock.now() + TIDY_AFTER_TRAFFIC)

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await self._task

    def _due_at(self, when: datetime) -> None:
        if self._closed or (self._due is not None and self._due <= when):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = when
        self._timer = self._clock.call_at(when, self._begin)

    def _begin(self) -> None:
        self._due = self._timer = None
        self._expected = False
        if not self._closed and self._task is None:
            self._task = asyncio.create_task(self._tidy())

    async def _tidy(self) -> None:
        again: datetime | None
        try:
            again = self._times.here(await self._store.tidy())
        except QoError:
            log.warning("housekeeping failed; it will be tried again", exc_info=True)
            again = self._clock.now() + TIDY_AFTER_TRAFFIC
        self._task = None
        if again is not None:
            self._due_at(max(again, self._clock.now() + TIDY_STEP_REST))


class Vigil:
    """While someone waits, makes sure now and then that hints still come: a connection may be alive and mute."""

    def __init__(self, store: Store, clock: Clock, someone_waits: Callable[[], bool]) -> None:
        self._store = store
        self._clock = clock
        self._someone_waits = someone_waits
        self._verified: datetime | None = None
        self._timer: Timer | None = None
        self._task: asyncio.Task[None] | None = None
        self.verifications = 0

    def needed(self) -> None:
        """Someone began to wait."""
        every = self._store.check_seconds
        if self._timer is not None or self._task is not None or not every or self._store.must_poll:
            return
        if self._verified is None:
            self._verified = self._clock.now()  # when listening began, it was verified
        self._timer = self._clock.call_at(self._verified + timedelta(seconds=every), self._begin)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _begin(self) -> None:
        self._timer = None
        if self._someone_waits():
            self._task = asyncio.create_task(self._verify())

    async def _verify(self) -> None:
        self.verifications += 1
        try:
            await self._store.verify()
        except QoError:
            log.warning("could not verify that notifications come; it will be tried again", exc_info=True)
        finally:
            self._task = None
            self._verified = self._clock.now()
        if self._someone_waits():
            self.needed()


class Poller:
    """Asks a store that cannot wake us whether another process wrote, while someone waits."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        strategy: PollingStrategy,
        someone_waits: Callable[[], bool],
        found: Callable[[], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._strategy = strategy
        self._someone_waits = someone_waits
        self._found = found
        self._task: asyncio.Task[None] | None = None
        self.polls = self.empty = self.backoffs = 0
        self.interval = strategy.initial_interval()

    def needed(self) -> None:
        """Someone began to wait."""
        if self._store.must_poll and self._task is None:
            self._task = asyncio.create_task(self._poll())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _poll(self) -> None:
        interval = self._strategy.initial_interval()
        try:
            await self._ask()  # what others wrote from here on is news
            self._found()  # and what they wrote just before, after someone had asked
            while True:
                await self._sleep(self._strategy.apply_jitter(interval, random.random()))  # noqa: S311 - no secret
                if not self._someone_waits():
                    return
                changed = await self._ask()
                if changed:
                    self._found()
                self.empty += not changed
                following = self._strategy.next_interval(interval, changed)
                self.backoffs += following > interval
                self.interval = interval = following
        finally:
            self._task = None

    async def _ask(self) -> bool:
        self.polls += 1
        try:
            return await self._store.others_wrote()
        except QoError:
            log.warning("could not ask the store for changes", exc_info=True)
            return False

    async def _sleep(self, length: timedelta) -> None:
        over = asyncio.Event()
        timer = self._clock.call_at(self._clock.now() + length, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()
