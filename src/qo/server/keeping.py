"""Workers that come over HTTP: this server vouches for those whose claims it holds, and a minute longer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from qo.broker.clock import SystemClock
from qo.broker.service import Service
from qo.core.errors import QoError, Throttled
from qo.core.verbs import Workers
from qo.core.worker import Heartbeat

log = logging.getLogger("qo.server")

HOLD_SECONDS = 60.0
KNOWN_LIMIT = 10_000
"""More owners than this are not looked after."""
ASK_TIMES = 2
"""An owner that nobody knew at its first claim may have been about to register."""


@dataclass(slots=True)
class Owner:
    """Somebody who claims. `registered`: it is a worker, and this server vouches for it."""

    registered: bool = False
    parked: int = 0
    asked: int = 0
    seen: float = 0.0


class Keeper(Service):
    """Forgets owners that were not seen for a while: in memory alone, but the store is told of registered ones."""

    name = "forgetting workers"
    waits_for_tick = False

    def __init__(self, workers: Workers) -> None:
        super().__init__(SystemClock())
        self._workers = workers
        self._owners: dict[str, Owner] = {}
        self._adopting: set[asyncio.Task[None]] = set()
        self._closed = False

    async def heartbeat(self, heartbeat: Heartbeat) -> bool:
        owner = self._owner(heartbeat.id)
        if owner is None:
            raise Throttled(f"{len(self._owners)} workers and consumers are known here already")
        kept = await self._workers.heartbeat([heartbeat])
        owner.registered = True
        return kept

    async def deregister(self, id: str) -> None:
        self._owners.pop(id, None)
        await self._workers.deregister([id])

    @contextlib.contextmanager
    def parked(self, id: str | None) -> Iterator[None]:
        """A claim of this owner waits here."""
        owner = None if id is None or self._closed else self._owner(id)
        if id is None or owner is None:
            yield
            return
        if not owner.registered and owner.asked < ASK_TIMES:  # a worker may have registered at another server
            owner.asked += 1
            task = asyncio.create_task(self._adopt(id, owner))
            self._adopting.add(task)
            task.add_done_callback(self._adopting.discard)
        owner.parked += 1
        try:
            yield
        finally:
            owner.parked -= 1
            owner.seen = time.monotonic()

    async def stop(self) -> None:
        self._closed = True
        for task in self._adopting:
            task.cancel()
        await asyncio.gather(*self._adopting, return_exceptions=True)
        await super().stop()

    def _owner(self, id: str) -> Owner | None:
        owner = self._owners.get(id)
        if owner is None:
            if len(self._owners) >= KNOWN_LIMIT:
                return None
            owner = self._owners[id] = Owner()
        owner.seen = time.monotonic()
        if self.is_parked:
            self.nudge(self.clock.now() + timedelta(seconds=HOLD_SECONDS / 2))
        return owner

    async def _adopt(self, id: str, owner: Owner) -> None:
        with contextlib.suppress(QoError):
            owner.registered |= await self._workers.adopt(id)

    async def tick(self) -> datetime | None:
        over = time.monotonic() - HOLD_SECONDS
        gone = {id: each for id, each in self._owners.items() if not each.parked and each.seen < over}
        for id in gone:
            del self._owners[id]
        left = [id for id, each in gone.items() if each.registered]
        if left:
            try:
                await self._workers.disown(left)
            except QoError as error:
                log.warning("could not say that %d workers are gone: %s", len(left), error)
        return self.clock.now() + timedelta(seconds=HOLD_SECONDS / 2) if self._owners else None
