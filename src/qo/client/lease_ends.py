"""When leases end, as far as a worker knows without asking.

A process may be stopped, and a machine may sleep, between a claim and the start of its
tasks. What was claimed may then be another worker's. So a task is started only under a
lease that cannot be over; if it may be, the store is asked first.

The store says when a lease ends by its own clock. How far that is ahead of ours is
learned from its answers: a claim's answer shows the store's time at the claim, which
was before the answer arrived; an extension's answer, a time that was after the
question. So a clock that is wrong, or is put back, costs a question and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta

from qo.core.lease import LeaseToken
from qo.metrics.steady import steady_seconds


class LeaseEnds:
    """The leases of a worker. May be looked at from any thread."""

    def __init__(self, now: Callable[[], float] = steady_seconds) -> None:
        self.now = now
        self._ahead: float | None = None
        """By how many seconds the store's clock is ahead of ours."""
        self._ends: dict[LeaseToken, float] = {}

    def claimed(self, token: LeaseToken, expires_at: datetime, lease: timedelta) -> None:
        """An answer arrived: the store gave this lease, of that length, some time before now."""
        at_least = expires_at.timestamp() - lease.total_seconds() - self.now()
        self._ahead = at_least if self._ahead is None else max(self._ahead, at_least)
        self._ends[token] = expires_at.timestamp() - self._ahead

    def extended(self, token: LeaseToken, expires_at: datetime, lease: timedelta, asked_at: float) -> None:
        """The store held a lease for at least so long from a time that was not before `asked_at`."""
        at_most = expires_at.timestamp() - lease.total_seconds() - asked_at
        self._ahead = at_most if self._ahead is None else min(self._ahead, at_most)
        self._ends[token] = asked_at + lease.total_seconds()

    def may_be_over(self, token: LeaseToken) -> bool:
        end = self._ends.get(token)
        return end is not None and self.now() >= end

    def keep_only(self, tokens: Collection[LeaseToken]) -> None:
        """Forget the leases that nothing is held under any more."""
        for token in [each for each in self._ends if each not in tokens]:
            del self._ends[token]
