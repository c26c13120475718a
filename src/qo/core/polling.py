"""How long to wait between looks at a store that cannot wake us.

Found something: back to the minimum at once. Found nothing: multiply, up to the
maximum. Every wait is jittered by ±10 % so that many pollers do not march in step.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from qo.core.durations import Length, duration, milliseconds
from qo.core.errors import Invalid

DEFAULT_MIN_INTERVAL_MS = 100
DEFAULT_MAX_INTERVAL_MS = 5000
DEFAULT_BACKOFF_MULTIPLIER = 2.0
JITTER = 0.1

DEFAULT_GROUP_INTERVAL_MS = 100
DEFAULT_GROUP_MAX_INTERVAL_MS = 2000
DEFAULT_BACKOFF_THRESHOLD = 1
DEFAULT_FORGET_AFTER_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class PollingStrategy:
    """Make one with `PollingStrategy.adaptive()` (the default) or `.fixed()`."""

    min_interval: timedelta = timedelta(milliseconds=DEFAULT_MIN_INTERVAL_MS)
    max_interval: timedelta = timedelta(milliseconds=DEFAULT_MAX_INTERVAL_MS)
    backoff_multiplier: float = DEFAULT_BACKOFF_MULTIPLIER

    def __post_init__(self) -> None:
        for name in ("min_interval", "max_interval"):
            object.__setattr__(self, name, duration(name, getattr(self, name)))
        if self.min_interval <= timedelta(0):
            raise Invalid("min_interval_ms", "must be greater than 0")
        if self.max_interval < self.min_interval:
            raise Invalid("max_interval_ms", "must not be less than min_interval_ms")
        if not self.backoff_multiplier >= 1:
            raise Invalid("backoff_multiplier", f"must be at least 1, not {self.backoff_multiplier}")

    @classmethod
    def adaptive(
        cls,
        min_interval_ms: Length = DEFAULT_MIN_INTERVAL_MS,
        max_interval_ms: Length = DEFAULT_MAX_INTERVAL_MS,
        backoff_multiplier: float = DEFAULT_BACKOFF_MULTIPLIER,
    ) -> PollingStrategy:
        """Fast while there is work, slower and slower while there is none."""
        return cls(
            milliseconds("min_interval_ms", min_interval_ms),
            milliseconds("max_interval_ms", max_interval_ms),
            backoff_multiplier,
        )

    @classmethod
    def fixed(cls, interval_ms: Length) -> PollingStrategy:
        """The same interval always: predictable latency, higher cost."""
        interval = milliseconds("interval_ms", interval_ms)
        if interval <= timedelta(0):
            raise Invalid("interval_ms", "must be greater than 0")
        return cls(interval, interval, 1.0)

    def initial_interval(self) -> timedelta:
        """The first rest."""
        return self.min_interval

    def next_interval(self, current: timedelta, found: bool) -> timedelta:
        """The interval after a look that found something, or nothing."""
        if found:
            return self.min_interval
        return min(current * self.backoff_multiplier, self.max_interval)

    def apply_jitter(self, interval: timedelta, draw: float) -> timedelta:
        """Spread `interval` by ±10 %; `draw` is uniform in [0, 1)."""
        return interval * (1 - JITTER + 2 * JITTER * draw)


class Polled(NamedTuple):
    """How often a store was asked whether others wrote, how often in vain, and how long the rest is now."""

    polls: int
    empty: int
    backoffs: int
    interval: timedelta


SECONDS_PER_MONTH = 30 * 24 * 3600


def monthly_cost(
    strategy: PollingStrategy, busy_share: float, price_per_thousand: float = 0.0004
) -> tuple[float, float]:
    """Polls per month of one worker that finds something a share of the time, and what they cost.

    The price is that of a thousand requests to the store. While busy every look
    is after the least interval, while idle after the longest.
    """
    if not 0 <= busy_share <= 1:
        raise Invalid("busy_share", f"must be from 0 to 1, not {busy_share}")
    busy = SECONDS_PER_MONTH * busy_share / strategy.min_interval.total_seconds()
    idle = SECONDS_PER_MONTH * (1 - busy_share) / strategy.max_interval.total_seconds()
    polls = busy + idle
    return polls, polls / 1000 * price_per_thousand


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often one group of waiting claims has been asked for in vain, and how long it rests now."""

    empty: int
    interval: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBackoff:
    """How one group of waiting claims rests between looks, where a store can only be polled.

    A look that finds something brings the interval back to the least. From the
    `threshold`-th look in a row that finds nothing on, it is multiplied, up to
    the most. A group that nobody waits in for `forget_after` begins anew.
    """

    interval: timedelta = timedelta(milliseconds=DEFAULT_GROUP_INTERVAL_MS)
    max_interval: timedelta = timedelta(milliseconds=DEFAULT_GROUP_MAX_INTERVAL_MS)
    threshold: int = DEFAULT_BACKOFF_THRESHOLD
    multiplier: float = DEFAULT_BACKOFF_MULTIPLIER
    forget_after: timedelta = timedelta(seconds=DEFAULT_FORGET_AFTER_SECONDS)

    def __post_init__(self) -> None:
        if self.interval <= timedelta(0):
            raise Invalid("group_interval_ms", "must be greater than 0")
        if self.max_interval < self.interval:
            raise Invalid("max_interval_ms", "must not be less than group_interval_ms")
        if self.threshold < 1:
            raise Invalid("backoff_threshold", f"must be at least 1, not {self.threshold}")
        if not self.multiplier >= 1:
            raise Invalid("backoff_multiplier", f"must be at least 1, not {self.multiplier}")
        if self.forget_after <= timedelta(0):
            raise Invalid("forget_after_seconds", "must be greater than 0")

    def start(self) -> Backoff:
        return Backoff(0, self.interval)

    def after(self, state: Backoff, found: bool) -> Backoff:
        """The state after a look that found something, or nothing."""
        if found:
            return self.start()
        empty = state.empty + 1
        if empty < self.threshold:
            return Backoff(empty, state.interval)
        return Backoff(empty, min(state.interval * self.multiplier, self.max_interval))
