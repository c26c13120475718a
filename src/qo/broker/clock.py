"""Time as the broker needs it: what it is, and to be called when it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now(self) -> datetime: ...

    def call_at(self, when: datetime, callback: Callable[[], None]) -> Timer:
        """Call back once, on the event loop, when it is `when` or later."""
        ...


class SystemClock:
    """The wall clock. A timer that fires early is set again, so a clock that was put back is honoured."""

    def now(self) -> datetime:
        return datetime.now(UTC)

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


LONGEST_SLEEP_SECONDS = 3600
"""Event loops refuse to sleep for years; a far timer is set again in between."""
