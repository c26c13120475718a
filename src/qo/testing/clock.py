"""A clock that the test moves."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)


class ManualClock:
    """Stands still until it is moved; then fires the timers that it passes, in order."""

    def __init__(self, start: datetime = START) -> None:
        self._now = start
        self._numbers = itertools.count()
        self._timers: list[tuple[datetime, int, ManualTimer]] = []

    def now(self) -> datetime:
        return self._now

    def call_at(self, when: datetime, callback: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(callback)
        if when <= self._now:
            asyncio.get_running_loop().call_soon(timer.fire)
            return timer
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def move(self, **length: float) -> None:
        self.move_to(self._now + timedelta(**length))

    def move_to(self, time: datetime) -> None:
        while self._timers and self._timers[0][0] <= time:
            when, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, when)
            timer.fire()
        self._now = time

    @property
    def next_timer(self) -> datetime | None:
        """When the next timer is set for."""
        live = [when for when, _, timer in self._timers if not timer.cancelled]
        return min(live, default=None)


class ManualTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def fire(self) -> None:
        if not self.cancelled:
            self._callback()
