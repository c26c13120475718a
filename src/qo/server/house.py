"""What all routes share: the broker, the gate, the limits, and who waits."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from qo.broker.broker import Broker
from qo.core.errors import Invalid, Throttled, TooLarge
from qo.server.gate import Gate
from qo.server.keeping import Keeper
from qo.server.request import Request
from qo.server.settings import ServerSettings
from qo.server.streams import Streams


class House:
    def __init__(self, broker: Broker, settings: ServerSettings, gate: Gate) -> None:
        self.broker = broker
        self.settings = settings
        self.limits = settings.limits
        self.gate = gate
        self.streams = Streams()
        self.keeper = Keeper(broker.workers)
        self.stopping = False
        self._waiting: Counter[str] = Counter()
        self._all_waiting = 0

    def check_count(self, field: str, items: Sequence[object]) -> None:
        if len(items) > self.limits.batch:
            raise TooLarge(field, f"must have at most {self.limits.batch} items, not {len(items)} (limits.batch)")

    def until(self, timeout_ms: int) -> datetime:
        """When a wait of so long is over; this server lets nobody wait for longer than its limit."""
        if timeout_ms < 0:
            raise Invalid("timeout_ms", f"must not be negative, not {timeout_ms}")
        return self.broker.now() + timedelta(milliseconds=min(timeout_ms, self.limits.wait_ms))

    def check_room(self, request: Request) -> str:
        """Turn away who would wait if too many do; answers the name under which the client's are counted."""
        client = request.client if request.caller.token is None else request.caller.token.id
        if self._all_waiting >= self.limits.waiters:
            raise Throttled(f"{self._all_waiting} requests wait already (limits.waiters)")
        if self._waiting[client] >= self.limits.waiters_per_client:
            raise Throttled(f"{self._waiting[client]} requests of yours wait already (limits.waiters_per_client)")
        return client

    @contextlib.contextmanager
    def waiting(self, request: Request) -> Iterator[None]:
        """One more request that waits."""
        client = self.check_room(request)
        self._waiting[client] += 1
        self._all_waiting += 1
        try:
            yield
        finally:
            self._all_waiting -= 1
            self._waiting[client] -= 1
            if not self._waiting[client]:
                del self._waiting[client]

    @property
    def all_waiting(self) -> int:
        return self._all_waiting

    async def stop(self) -> None:
        """Answer everyone who waits; what is under way goes on."""
        self.stopping = True
        self.streams.stop()
        await self.keeper.close()
        await self.broker.stop_waiting()
