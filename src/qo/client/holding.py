"""The consumer core: holding what was claimed, keeping its leases, settling it and claiming on, giving it back.

`consume`, the worker, the test harness and whatever else consumes are built on this. What is held is
pure bookkeeping, `qo.core.held`; here it meets a broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

from qo.client.lease_ends import LeaseEnds
from qo.core.errors import QoError
from qo.core.held import At, Held, at, released
from qo.core.lease import Claimed, Delivered, Extension, LeaseToken, Lost, Nothing, Settled, Settlement, Want
from qo.core.verbs import Broker

log = logging.getLogger("qo.client")

EXTEND_AFTER = 3
"""Leases are extended when a third of them is over."""

GiveUp = Callable[[Sequence[At], bool], None]
"""Called with messages to stop working on, and whether they were lost; else they were canceled."""


class Holder:
    """What one consumer holds. Lives on one loop."""

    def __init__(self, broker: Broker, lease: timedelta, give_up: GiveUp = lambda _, __: None) -> None:
        self._broker = broker
        self._lease = lease
        self._give_up = give_up
        self.held = Held()
        self.ends = LeaseEnds()

    def take(self, claimed: Claimed) -> None:
        """Hold what a claim brought."""
        self.held.take(claimed.deliveries)
        first = claimed.deliveries[0]
        self.ends.claimed(first.token, first.expires_at, self._lease)

    async def settle(
        self, items: Sequence[Settlement], then: Sequence[Want] = ()
    ) -> tuple[Sequence[Settled], list[Claimed]]:
        """Say what became of messages, hold them no longer, and hold what the claims in `then` bring."""
        answers, claims = await self._broker.settle(items, then)
        self.held.forget(items)
        claimed = [each for each in claims if isinstance(each, Claimed)]
        for each in claimed:
            self.take(each)
        return answers, claimed

    async def keep(self, every_seconds: float | None = None) -> None:
        """Extend all leases, again and again, each time a third of them is over."""
        rest = self._lease.total_seconds() / EXTEND_AFTER if every_seconds is None else every_seconds
        while True:
            await asyncio.sleep(rest)
            await self.extend_all()

    async def extend_all(self) -> None:
        """One call for all leases."""
        self.ends.keep_only(self.held.tokens)
        extensions = self.held.extensions(self._lease)
        if extensions:
            await self.extend(extensions)

    async def extend_one(self, token: LeaseToken, lease: timedelta | None = None) -> None:
        await self.extend([Extension(token=token, lease=self._lease if lease is None else lease)])

    async def extend(self, extensions: Sequence[Extension]) -> None:
        """Hold leases for longer. The host is told of what is lost or canceled; an error is logged."""
        asked_at = self.ends.now()
        try:
            answers = await self._broker.extend(extensions)
        except QoError as error:
            log.warning("could not extend %d leases: %s", len(extensions), error)
            return
        for extension, answer in zip(extensions, answers, strict=True):
            if not isinstance(answer, Lost):
                self.ends.extended(extension.token, answer.expires_at, extension.lease, asked_at)
            changes = self.held.extended(extension, answer)
            if changes.lost:
                self._give_up(changes.lost, True)
            if changes.canceled:
                self._give_up(changes.canceled, False)

    def holds(self, delivered: Delivered) -> bool:
        return at(delivered) in self.held

    async def release_all(self) -> int:
        """Release all that is held, with no attempt used. How many messages that was."""
        left = self.held.deliveries()
        self.held.clear()
        if left:
            self._give_up([at(each) for each in left], True)
            await self._broker.settle(released(left))
        return len(left)


def claimed_of(answer: Claimed | Nothing) -> Sequence[Delivered]:
    """The messages of a claim's answer."""
    return answer.deliveries if isinstance(answer, Claimed) else ()
