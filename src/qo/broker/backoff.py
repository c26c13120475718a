"""backoff: how long each group of waiting claims rests, where a store can only be polled."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime
from typing import NamedTuple

from qo.broker.clock import Clock
from qo.core.polling import Backoff, GroupBackoff


class Looked(NamedTuple):
    at: datetime
    state: Backoff


class Backoffs:
    """When the store was last asked for each wait group, and whether it had something. Forgets unused groups."""

    def __init__(self, clock: Clock, rule: GroupBackoff) -> None:
        self._clock = clock
        self._rule = rule
        self._of: dict[Hashable, Looked] = {}
        self.times = 0
        """How often a group began to rest for longer than the least interval."""

    def __len__(self) -> int:
        """How many groups rest for longer than the least interval."""
        return sum(looked.state.interval > self._rule.interval for looked in self._of.values())

    @property
    def longest(self) -> float:
        """Seconds."""
        return max((looked.state.interval.total_seconds() for looked in self._of.values()), default=0.0)

    def due(self, group: Hashable) -> datetime | None:
        """When the store may be asked for this wait group again; None: now."""
        looked = self._of.get(group)
        return None if looked is None else looked.at + looked.state.interval

    def asked(self, group: Hashable, found: bool) -> None:
        """Note that the store was asked for this wait group, and whether it had something."""
        now = self._clock.now()
        before = self._of.pop(group, None)  # inserted again at the end: the least recently asked come first
        state = self._rule.start() if before is None else before.state
        after = self._rule.after(state, found)
        self.times += after.interval > state.interval
        self._of[group] = Looked(now, after)
        while (oldest := next(iter(self._of))) != group and self._of[oldest].at + self._rule.forget_after <= now:
            del self._of[oldest]
