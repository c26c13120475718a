"""demands: waiting for something to do, without taking it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta

from qo.broker.clock import Clock, StoreTimes
from qo.broker.hints import HintCounters
from qo.core.scaling import Demand
from qo.core.verbs import Inspect

LOOK_REST = timedelta(milliseconds=250)
"""Between two looks, if hints come faster than that and others take what they tell of."""
REMEMBERED = 1000

Wish = tuple[tuple[str, ...], str, frozenset[str] | None]
"""Queues, a group, and kinds."""


class Demands:
    def __init__(
        self,
        store: Inspect,
        clock: Clock,
        times: StoreTimes,
        counters: HintCounters,
        must_poll: Callable[[], bool],
    ) -> None:
        self._store = store
        self._clock = clock
        self._times = times
        self._counters = counters
        self._must_poll = must_poll
        self._waiting: dict[asyncio.Event, frozenset[str]] = {}
        self._empty: dict[Wish, tuple[int, Demand, datetime | None]] = {}
        """Empty demands: the hint count when the store was asked, the demand, and when time may bring something."""
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(
        self, queues: Sequence[str], group: str, kinds: Collection[str] | None, until: datetime | None
    ) -> Demand:
        """The demand: at once if there is some; else as soon as there is, at `until`, or when the broker closes.

        An empty demand is remembered until a hint comes: a caller that waits again and again asks the store once.
        """
        wish = tuple(queues), group, None if kinds is None else frozenset(kinds)
        news = asyncio.Event()
        self._waiting[news] = frozenset(queues)
        try:
            while True:
                news.clear()
                demand, next_at = self._remembered(wish) or await self._ask(wish)
                if demand.depth or self._closed or (until is not None and self._clock.now() >= until):
                    return demand
                await self._sleep(news, min((each for each in (until, next_at) if each), default=None))
                rest = self._clock.now() + LOOK_REST
                await self._sleep(asyncio.Event(), rest if until is None else min(rest, until))
        finally:
            del self._waiting[news]

    def heard(self, queues: Collection[str] | None) -> None:
        for news, wanted in self._waiting.items():
            if queues is None or not wanted.isdisjoint(queues):
                news.set()

    async def close(self) -> None:
        self._closed = True
        self.heard(None)

    async def _ask(self, wish: Wish) -> tuple[Demand, datetime | None]:
        count = self._counters.count(wish[0])
        demand = await self._store.demand(*wish)
        if len(self._empty) >= REMEMBERED:
            self._empty.clear()
        next_at = self._times.here(demand.next_at)
        self._empty[wish] = count, demand, next_at
        return demand, next_at

    def _remembered(self, wish: Wish) -> tuple[Demand, datetime | None] | None:
        """The remembered empty demand; None if a hint has come since, or time may have changed it."""
        count, demand, next_at = self._empty.get(wish, (-1, Demand(), None))
        if self._must_poll() or demand.depth or count != self._counters.count(wish[0]):
            return None
        return (demand, next_at) if next_at is None or self._clock.now() < next_at else None

    async def _sleep(self, news: asyncio.Event, until: datetime | None) -> None:
        timer = None if until is None else self._clock.call_at(until, news.set)
        try:
            await news.wait()
        finally:
            if timer is not None:
                timer.cancel()
