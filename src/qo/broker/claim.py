"""claim: ask, and if nothing is there, wait.

A claim that was committed for a caller who has gone is handed to the next waiter
who wants the same, else given back at once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import datetime, timedelta

from qo.broker.backoff import Backoffs
from qo.broker.batcher import Batcher
from qo.broker.clock import Clock, StoreTimes
from qo.broker.hints import HintCounters
from qo.broker.measured import Measured
from qo.broker.waiters import Waiters
from qo.core.errors import QoError
from qo.core.held import released
from qo.core.lease import Claimed, Nothing, Want

log = logging.getLogger("qo.broker")

SHORT_WAIT = timedelta(seconds=1)
CONTENTION_SECONDS = 0.005, 0.02
CONTENTION_ROUNDS = 100
"""How long, and how often, a claim that does not wait makes way for others that are at the same lanes."""
CLAIM_WEIGHT_LIMIT = 20_000
"""Messages that one store call may claim in all, for all the wants in it."""


class Claims:
    """Asks the store for every caller, and parks those who get nothing and have time."""

    def __init__(
        self,
        store: Measured,
        clock: Clock,
        times: StoreTimes,
        counters: HintCounters,
        backoffs: Backoffs,
        woke: Callable[[float], None],
        must_poll: Callable[[], bool],
    ) -> None:
        self._store = store
        self._clock = clock
        self._must_poll = must_poll
        self._counters = counters
        self.waiters = Waiters(clock, times, counters, self._ask_all, self.give_back, backoffs, woke)
        self.waiting = 0
        """Calls that wait, or ask before they wait."""
        self.undelivered = 0
        self._returns: set[asyncio.Task[None]] = set()
        self._batcher = Batcher[Want, Claimed | Nothing](
            store.claim, weigh=lambda want: want.messages, limit=CLAIM_WEIGHT_LIMIT, abandoned=self.give_back
        )

    async def claim(self, want: Want) -> Claimed | Nothing:
        """Claim without waiting. A claim that met locks of others is tried again before it gets `Nothing`."""
        answer = await self._batcher.ask(want)
        for _ in range(CONTENTION_ROUNDS):
            if isinstance(answer, Claimed) or not answer.contended:
                break
            await asyncio.sleep(random.uniform(*CONTENTION_SECONDS))  # noqa: S311 - it need not be a secret
            answer = await self._batcher.ask(want)
        return answer

    async def wait(self, want: Want, until: datetime | None, priority: int = 0) -> Claimed | Nothing:
        """Claim, and if nothing is claimable wait until `until`; None: no limit.

        Of those who wait for the same, a higher priority is served first.
        """
        self.waiting += 1
        try:
            before = self._counters.count(want.queues)
            known = self.waiters.stands_for(want) if self._may_trust(until) else None
            if known is not None:
                return await self.waiters.park(want, until, known, before, priority)
            answer = await self._batcher.ask(want)
            if isinstance(answer, Claimed):
                return answer
            return await self.waiters.park(want, until, self.waiters.known_from(answer), before, priority)
        finally:
            self.waiting -= 1

    def _may_trust(self, until: datetime | None) -> bool:
        """Whether the wait group's last empty answer will do. Not if the store sends no hints, nor for a short wait:
        a hint may be on its way.
        """
        if self._must_poll():
            return False
        return until is None or until - self._clock.now() >= SHORT_WAIT

    async def close(self) -> None:
        """Finish the claims under way; messages whose caller has gone are released."""
        await self._batcher.close()
        while self._returns:
            await asyncio.gather(*self._returns)

    async def _ask_all(self, wants: list[Want]) -> list[Claimed | Nothing]:
        return list(await self._store.claim(wants))

    def give_back(self, want: Want, answer: Claimed | Nothing) -> None:
        """The caller has gone. Hand its messages to the next waiter of the same wait group, else release them.

        Messages under a token that the caller chose are released: a caller that comes again with that token must not
        meet the lease of another.
        """
        if isinstance(answer, Nothing):
            return
        heir = None if want.named and not want.auto_settle else self.waiters.next_of(want)
        if heir is not None:
            self.waiters.hand_over(heir, answer)
        elif want.auto_settle:
            self.undelivered += len(answer.deliveries)
            log.warning("%d messages settled at delivery could not be delivered", len(answer.deliveries))
        else:
            self.release(answer)

    def release(self, answer: Claimed) -> None:
        """Give back what was claimed, soon; no attempt is used."""
        task = asyncio.create_task(self._release(answer))
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)

    async def _release(self, claimed: Claimed) -> None:
        items = released(claimed.deliveries)
        try:
            await self._store.settle(items)
        except QoError:
            log.warning("could not release %d messages; their lease will run out", len(items), exc_info=True)
