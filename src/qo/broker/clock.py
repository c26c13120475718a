"""The broker's clock: what time it is, and callbacks at a given time.

A broker waits by a clock that goes on steadily: a wall clock that is put forward or
back neither cuts a wait short nor prolongs it. What the store says about times is by
the store's clock, and is translated when it is heard (`Broker` gives `store_now`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

from qo.metrics.steady import steady_seconds


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now(self) -> datetime: ...

    def call_at(self, when: datetime, callback: Callable[[], None]) -> Timer:
        """Call back once, on the event loop, when it is `when` or later."""
        ...


class SystemClock:
    """The time at which it was made, and what has passed since, steadily."""

    def __init__(self) -> None:
        self._began = datetime.now(UTC)
        self._began_at = steady_seconds()

    def now(self) -> datetime:
        return self._began + timedelta(seconds=steady_seconds() - self._began_at)

    def call_at(self, when: datetime, callback: Callable[[], None]) -> Timer:
        return _SystemTimer(self, when, callback)


class _SystemTimer:
    def __init__(self, clock: SystemClock, when: datetime, callback: Callable[[], None]) -> None:
        self._clock, self._when, self._callback = clock, when, callback
        self._set()

    def _set(self) -> None:
        seconds = (self._when - self._clock.now()).total_seconds()
        self._handle = asyncio.get_running_loop().call_later(min(max(seconds, 0), LONGEST_SLEEP_SECONDS), self._fire)

    def _fire(self) -> None:
        if self._clock.now() < self._when:
            self._set()
        else:
            self._callback()

    def cancel(self) -> None:
        self._handle.cancel()


LONGEST_SLEEP_SECONDS = 60
"""A far timer is set again in between: an event loop's clock stands still while the machine sleeps, ours does not."""


class StoreTimes:
    """Turns what a store says about times into this process's own."""

    def __init__(self, clock: Clock, store_now: Callable[[], datetime]) -> None:
        self._clock = clock
        self._store_now = store_now

    def here(self, when: datetime | None) -> datetime | None:
        """A moment by the store's clock, as this process will see it come."""
        return None if when is None else self._clock.now() + (when - self._store_now())
