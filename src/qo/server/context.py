"""What all routes share: the broker, the authenticator, the limits, and the requests that wait."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from qo.broker.broker import LocalBroker
from qo.core.access import Scope
from qo.core.errors import Invalid, Throttled, TooLarge
from qo.core.lease import Claimed, Nothing, Want
from qo.core.message import NewMessage
from qo.server.authenticator import Authenticator
from qo.server.keeping import Keeper
from qo.server.request import Request
from qo.server.settings import ServerSettings
from qo.server.streams import Stream, Streams

Waited = Claimed | Nothing
CONSUMER = frozenset({Scope.CONSUME})


class ServerContext:
    def __init__(self, broker: LocalBroker, settings: ServerSettings, authenticator: Authenticator) -> None:
        self.broker = broker
        self.settings = settings
        self.limits = settings.limits
        self.authenticator = authenticator
        self.streams = Streams()
        self.keeper = Keeper(broker.workers)
        self.stopping = False
        self.siblings: Path | None = None
        """Where the other processes behind this port are found; None: there are none."""
        self._waiting: Counter[str] = Counter()
        self._all_waiting = 0

    def check_count(self, field: str, items: Sequence[object]) -> None:
        if len(items) > self.limits.batch:
            raise TooLarge(field, f"must have at most {self.limits.batch} items, not {len(items)} (limits.batch)")

    def check_keys(self, messages: Sequence[NewMessage]) -> None:
        """One commit must not keep the store's other writers waiting for long."""
        keys = len({(each.queue, each.key) for each in messages if each.key is not None})
        if keys > self.limits.keys:
            raise TooLarge(
                "messages",
                f"must have at most {self.limits.keys} different keys in one commit, not {keys} (limits.keys)",
            )

    def limited(self, want: Want, among: int = 1) -> Want:
        """A commit takes from no more lanes than it should, all of its claims together; the next one goes on."""
        lanes = max(1, self.limits.lanes // among)
        if want.messages <= lanes or (want.lanes is not None and want.lanes <= lanes):
            return want
        return msgspec.structs.replace(want, lanes=lanes)

    def until(self, timeout_ms: int) -> datetime:
        """When a wait of so long is over; this server lets nobody wait for longer than its limit."""
        if timeout_ms < 0:
            raise Invalid("timeout_ms", f"must not be negative, not {timeout_ms}")
        return self.broker.now() + timedelta(milliseconds=min(timeout_ms, self.limits.wait_ms))

    def check_room(self, request: Request) -> str:
        """Turn away who would wait if too many do; answers the name under which the client's are counted."""
        client = self._client(request)
        if self._all_waiting >= self.limits.waiters:
            raise Throttled(f"{self._all_waiting} requests wait already (limits.waiters)")
        if self._waiting[client] >= self.limits.waiters_per_client:
            raise Throttled(f"{self._waiting[client]} requests of yours wait already (limits.waiters_per_client)")
        return client

    def check_streams(self, request: Request) -> None:
        """Turn away who has as many streams as it may."""
        client = self._client(request)
        if self.streams.of(client) >= self.limits.streams_per_client:
            raise Throttled(f"{self.streams.of(client)} streams of yours are open already (limits.streams_per_client)")

    def open_stream(self, request: Request, window: int) -> Stream:
        return self.streams.open(window, self._client(request))

    def _client(self, request: Request) -> str:
        """The name under which a client is counted: its token's, or its address."""
        return request.client if request.caller.token is None else request.caller.token.id

    async def still_theirs(self, request: Request, queues: Collection[str] | None, answer: Waited) -> Waited:
        """What came while a request waited, if its caller would still be let in; else that is given back."""
        if not isinstance(answer, Claimed) or request.caller.token is None:
            return answer
        try:
            (await self.authenticator.identify(request.headers)).check(CONSUMER, queues)
        except BaseException:  # also if the client hangs up just now
            self.broker.release(answer)
            raise
        return answer

    async def check_leases(self, request: Request, lanes: Sequence[int], tokens: Sequence[str] = ()) -> None:
        """A lease's token gives a right in one queue: a caller that is limited to some queues must reach that queue."""
        request.allow(CONSUMER, [])
        if request.caller.is_limited:
            request.allow(CONSUMER, await self.broker.queues_of(lanes, tokens))

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
        await self.keeper.stop()
        await self.broker.stop_waiting()
