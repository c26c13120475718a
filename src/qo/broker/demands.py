"""demands: waiting for something to do, without taking it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from qo.broker.clock import Clock
from qo.core.scaling import Demand
from qo.stores.store import Inspect

LOOK_REST = timedelta(milliseconds=250)
"""Between two looks, if hints come faster than that and others take what they tell of."""


class Demands:
    def __init__(self, store: Inspect, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._waiting: dict[asyncio.Event, frozenset[str]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(
        self, queues: Sequence[str], group: str, kinds: Collection[str] | None, until: datetime | None
    ) -> Demand:
        """What there is to do: at once if there is something, else when there is, it is `until`, or all is closed."""
        news = asyncio.Event()
        self._waiting[news] = frozenset(queues)
        try:
            while True:
                news.clear()
                demand = await self._store.demand(queues, group, kinds)
                now = self._clock.now()
                if demand.depth or self._closed or (until is not None and now >= until):
                    return demand
                await self._sleep(news, min((each for each in (until, demand.next_at) if each), default=None))
                if until is None or self._clock.now() + LOOK_REST < until:
                    await self._sleep(asyncio.Event(), now + LOOK_REST)
        finally:
            del self._waiting[news]

    async def _sleep(self, news: asyncio.Event, until: datetime | None) -> None:
        timer = None if until is None else self._clock.call_at(until, news.set)
        try:
            await news.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def heard(self, queues: Collection[str] | None) -> None:
        for news, wanted in self._waiting.items():
            if queues is None or not wanted.isdisjoint(queues):
                news.set()

    async def close(self) -> None:
        self._closed = True
        self.heard(None)
