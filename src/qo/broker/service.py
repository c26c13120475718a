"""A service: a part of a process that does something at its own times, and nothing in between.

A service is in one of four states. It *rests* until a time, by a timer. It is *parked* when its
last tick said that there is nothing to come. It *ticks*: one task does what is due. It is
*stopped*. A nudge cuts a rest short, and wakes a parked service; during a tick it is kept for
afterwards. So an idle service costs no task, no timer and no call to the store.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from datetime import datetime, timedelta

from qo.broker.clock import Clock, Timer
from qo.core.backoff import LoopBackoff
from qo.core.errors import QoError

log = logging.getLogger("qo.broker")


class Service(ABC):
    """Subclasses say what a tick does. A tick that fails is logged and made again after a backoff."""

    name: str
    ticks_first = False
    """Whether the service begins with a tick, to learn when there will be work; else it begins parked."""
    waits_for_tick = True
    """Whether stopping lets a tick that is under way finish, or cancels it."""

    def __init__(self, clock: Clock, backoff: LoopBackoff | None = None) -> None:
        self.clock = clock
        self._backoff = backoff or LoopBackoff(1.0, 60.0)
        self._due: datetime | None = None
        self._timer: Timer | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    @abstractmethod
    async def tick(self) -> datetime | None:
        """Do what is due. Answers when to tick again, by this process's clock; None: not before a nudge."""

    def start(self) -> None:
        """Begin: parked, or with a first tick."""
        if self.ticks_first:
            self.nudge()

    @property
    def is_parked(self) -> bool:
        """Neither resting nor ticking."""
        return self._timer is None and self._task is None

    @property
    def is_ticking(self) -> bool:
        return self._task is not None

    def nudge(self, when: datetime | None = None) -> None:
        """Tick at that time, if not sooner; None: now."""
        if self._stopped:
            return
        due = when or self.clock.now()
        if self._due is not None and self._due <= due:
            return
        self._due = due
        if self._task is None:
            self._rest()

    async def stop(self) -> None:
        """Tick no more. Returns when no tick is under way."""
        self._stopped = True
        self._stop_timer()
        task = self._task
        if task is not None:
            if not self.waits_for_tick:
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _rest(self) -> None:
        self._stop_timer()
        if self._due is None or self._stopped:
            return
        if self._due <= self.clock.now():
            self._begin()
        else:
            self._timer = self.clock.call_at(self._due, self._begin)

    def _begin(self) -> None:
        self._due = self._timer = None
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            again = await self.tick()
            self._backoff.succeeded()
        except Exception as error:
            rest = self._backoff.failed()
            level = logging.WARNING if isinstance(error, QoError) else logging.ERROR
            log.log(level, "%s failed; it is tried again in %g s", self.name, rest, exc_info=True)
            again = self.clock.now() + timedelta(seconds=rest)
        finally:
            self._task = None
        if again is not None and (self._due is None or again < self._due):
            self._due = again
        self._rest()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
