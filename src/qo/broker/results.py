"""results: waiting for a job to finish, woken by the commit that finishes it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from qo.broker.clock import Clock
from qo.core.errors import Closed, TimedOut
from qo.core.message import MessageId
from qo.core.outcome import Job
from qo.core.verbs import Engine


class Results:
    def __init__(self, store: Engine, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._waiting: defaultdict[MessageId, set[asyncio.Event]] = defaultdict(set)
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, id: MessageId, until: datetime | None) -> Job | None:
        """The job once it is finished; None if nothing is known of it.

        Watching begins before looking, so no end is missed.
        """
        news = asyncio.Event()
        over = False

        def time_is_up() -> None:
            nonlocal over
            over = True
            news.set()

        self._waiting[id].add(news)
        self._store.watch([id])
        timer = None if until is None else self._clock.call_at(until, time_is_up)
        try:
            while True:
                if self._closed:
                    raise Closed("this client was closed")
                [job] = await self._store.jobs([id])
                if job is None or job.state is None or job.state.finished:
                    return job
                if over:
                    raise TimedOut(f"job {job.id} is {job.state}; it goes on")
                await news.wait()
                news.clear()
        finally:
            if timer is not None:
                timer.cancel()
            self._stop_waiting(id, news)

    async def close(self) -> None:
        """Wake every caller that waits for a job; each raises `Closed`."""
        self._closed = True
        self.look_again()

    def _stop_waiting(self, id: MessageId, news: asyncio.Event) -> None:
        waiting = self._waiting[id]
        waiting.discard(news)
        if not waiting:
            del self._waiting[id]
            self._store.unwatch([id])

    def finished(self, ids: Iterable[MessageId]) -> None:
        for id in ids:
            for news in self._waiting.get(id, ()):
                news.set()

    def look_again(self) -> None:
        """Another process wrote something; any of them may be finished."""
        self.finished(list(self._waiting))
