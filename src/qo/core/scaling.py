"""How many workers there should be. Pure: demand and the time come in, a number goes out.

Up at once, down with patience: the number falls to the most that was wanted within the last while.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from qo.core.errors import Invalid
from qo.core.queue import DEFAULT_LEASE

DEFAULT_COUNT = 2
MAX_COUNT = 8
SCALE_INTERVAL_MS = 1000
SCALE_DOWN_SECONDS = 30.0
DRAIN_SECONDS = 10.0
RATE_DECAY = 0.9
"""By how much an older measurement of a worker's rate shrinks with each look."""
DEMAND_LANES = 10_000
"""Demand is counted over so many lanes at most; more would not change the answer."""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What a group has to do in some queues, now.

    waiting    messages that could be claimed, or follow one in their lane that could be
    runnable   of these, how many could run at once: a keyed lane counts as one
    running    delivered under live leases, and not settled
    oldest_at  since when the oldest of those waiting does
    next_at    when time will next bring something: a delay, a rest or a lease that ends; None: never
    """

    waiting: int = 0
    runnable: int = 0
    running: int = 0
    oldest_at: datetime | None = None
    next_at: datetime | None = None

    @property
    def depth(self) -> int:
        """How many slots could be used now."""
        return self.runnable + self.running


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSettings:
    """Bounds of the number of workers.

    default_count          workers that are always there; 0: none while there is nothing to do
    max_count              never more than these
    poll_interval_ms       how often a worker looks, where a store cannot wake it; 0: adaptive
    lease_timeout_seconds  how long a claim holds what it took
    scale_interval_ms      how often demand is looked at, while there is some
    scale_down_seconds     fewer are wanted for so long before workers are stopped
    drain_seconds          as many as can do what waits within this time, once their speed is known
    """

    default_count: int = DEFAULT_COUNT
    max_count: int = MAX_COUNT
    poll_interval_ms: float = 0.0
    lease_timeout_seconds: float = DEFAULT_LEASE.total_seconds()
    scale_interval_ms: float = float(SCALE_INTERVAL_MS)
    scale_down_seconds: float = SCALE_DOWN_SECONDS
    drain_seconds: float = DRAIN_SECONDS

    def __post_init__(self) -> None:
        checks = (
            ("default_count", self.default_count >= 0, "must not be negative"),
            ("max_count", self.max_count >= 1, "must be at least 1"),
            (
                "max_count",
                self.max_count >= self.default_count,
                f"must be at least default_count (--min), {self.default_count}",
            ),
            ("poll_interval_ms", self.poll_interval_ms >= 0, "must not be negative"),
            ("lease_timeout_seconds", self.lease_timeout_seconds > 0, "must be greater than 0"),
            ("scale_interval_ms", self.scale_interval_ms > 0, "must be greater than 0"),
            ("scale_down_seconds", self.scale_down_seconds >= 0, "must not be negative"),
            ("drain_seconds", self.drain_seconds > 0, "must be greater than 0"),
        )
        for name, good, problem in checks:
            if not good:
                raise Invalid(f"workers.{name}", f"{problem}, not {getattr(self, name)}")


def desired(demand: Demand, settings: ScalingSettings, now: datetime, *, workers: int = 0, rate: float = 0.0) -> int:
    """How many workers this demand asks for: one for each message that could run, within the bounds.

    `rate` is how many messages a second one worker was seen to finish: then no more
    than drain it in time. If the oldest waits for longer than that, one more than there are.
    """
    wanted = demand.depth
    if rate > 0:
        wanted = min(wanted, math.ceil(demand.depth / (rate * settings.drain_seconds)))
    if demand.runnable and demand.oldest_at is not None:
        late = (now - demand.oldest_at).total_seconds() > settings.drain_seconds
        wanted = max(wanted, min(workers + 1, demand.depth)) if late else wanted
    return max(settings.default_count, min(wanted, settings.max_count))


class Scaler:
    """Remembers what was wanted lately, and how fast a worker is."""

    def __init__(self, settings: ScalingSettings) -> None:
        self._settings = settings
        self._wanted: deque[tuple[datetime, int]] = deque()
        self.rate = 0.0

    def finished(self, messages: int, workers: int, seconds: float) -> None:
        """So many messages were finished by so many workers in that time."""
        seen = messages / (workers * seconds) if workers and seconds > 0 else 0.0
        self.rate = max(seen, self.rate * RATE_DECAY)

    def decide(self, demand: Demand, workers: int, now: datetime) -> int:
        """How many workers there should be now."""
        wanted = desired(demand, self._settings, now, workers=workers, rate=self.rate)
        while self._wanted and self._wanted[-1][1] <= wanted:
            self._wanted.pop()
        self._wanted.append((now, wanted))
        self._forget(now)
        return self._wanted[0][1]

    def next_change(self) -> datetime | None:
        """When the number may fall, if nothing new is wanted; None: it is as low as it was last wanted."""
        return self._wanted[0][0] + self._patience if len(self._wanted) > 1 else None

    @property
    def _patience(self) -> timedelta:
        return timedelta(seconds=self._settings.scale_down_seconds)

    def _forget(self, now: datetime) -> None:
        while len(self._wanted) > 1 and self._wanted[0][0] + self._patience <= now:
            self._wanted.popleft()
