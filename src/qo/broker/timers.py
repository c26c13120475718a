"""timers: housekeeping at its time; and while someone waits, whether others wrote and whether hints still come."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from datetime import datetime, timedelta

from qo.broker.clock import Clock, StoreTimes
from qo.broker.service import Service
from qo.core.backoff import LoopBackoff
from qo.core.errors import QoError
from qo.core.polling import PollingStrategy
from qo.core.verbs import Store

log = logging.getLogger("qo.broker")

TIDY_AFTER_TRAFFIC = timedelta(seconds=60)
TIDY_STEP_REST = timedelta(milliseconds=50)


class Housekeeping(Service):
    """Tidies when the store said that it is due, or a minute after traffic; never in a loop."""

    name = "housekeeping"
    ticks_first = True

    def __init__(self, store: Store, clock: Clock, times: StoreTimes) -> None:
        seconds = TIDY_AFTER_TRAFFIC.total_seconds()
        super().__init__(clock, LoopBackoff(seconds, seconds))
        self._store = store
        self._times = times
        self._expected = False
        """Whether it will run within a minute because of traffic."""

    def traffic(self) -> None:
        """Something was written: there will be something to tidy. Called for every write, so it is short."""
        if not self._expected and not self.is_ticking:
            self._expected = True
            self.nudge(self.clock.now() + TIDY_AFTER_TRAFFIC)

    async def tick(self) -> datetime | None:
        self._expected = False
        again = self._times.here(await self._store.tidy())
        return None if again is None else max(again, self.clock.now() + TIDY_STEP_REST)


class Vigil(Service):
    """While someone waits, makes sure now and then that hints still come: a connection may be alive and mute."""

    name = "verifying notifications"
    waits_for_tick = False

    def __init__(self, store: Store, clock: Clock, someone_waits: Callable[[], bool]) -> None:
        super().__init__(clock)
        self._store = store
        self._someone_waits = someone_waits
        self._verified: datetime | None = None
        self.verifications = 0

    def needed(self) -> None:
        """Someone began to wait."""
        every = self._store.check_seconds
        if not self.is_parked or not every or self._store.must_poll:
            return
        if self._verified is None:
            self._verified = self.clock.now()  # when listening began, it was verified
        self.nudge(self._verified + timedelta(seconds=every))

    async def tick(self) -> datetime | None:
        if not self._someone_waits():
            return None
        self.verifications += 1
        try:
            await self._store.verify()
        except QoError:
            log.warning("could not verify that notifications come; it will be tried again", exc_info=True)
        finally:
            self._verified = self.clock.now()
        every = self._store.check_seconds
        go_on = self._someone_waits() and every and not self._store.must_poll
        return self._verified + timedelta(seconds=every) if go_on else None


class Poller(Service):
    """Asks a store that cannot wake us whether another process wrote, while someone waits."""

    name = "polling"
    waits_for_tick = False

    def __init__(
        self,
        store: Store,
        clock: Clock,
        strategy: PollingStrategy,
        someone_waits: Callable[[], bool],
        found: Callable[[], None],
    ) -> None:
        super().__init__(clock)
        self._store = store
        self._strategy = strategy
        self._someone_waits = someone_waits
        self._found = found
        self._polling = False
        self.polls = self.empty = self.backoffs = 0
        self.interval = strategy.initial_interval()

    def needed(self) -> None:
        """Someone began to wait."""
        if self._store.must_poll and self.is_parked:
            self.nudge()

    async def tick(self) -> datetime | None:
        if not self._polling:
            self._polling = True
            self.interval = self._strategy.initial_interval()
            await self._ask()  # only writes after this look count as changes
            self._found()  # a write between an empty claim and this look would be missed
        elif self._someone_waits():
            changed = await self._ask()
            if changed:
                self._found()
            self.empty += not changed
            following = self._strategy.next_interval(self.interval, changed)
            self.backoffs += following > self.interval
            self.interval = following
        else:
            self._polling = False
            return None
        return self.clock.now() + self._strategy.apply_jitter(self.interval, random.random())  # noqa: S311 - no secret

    async def _ask(self) -> bool:
        self.polls += 1
        try:
            return await self._store.others_wrote()
        except QoError:
            log.warning("could not ask the store for changes", exc_info=True)
            return False
