"""Hints after a commit: a keyed lane whose lease has ended may have more, of the same kind as before.

Other waiters know when that lease would have run out, so the hint only
comes before a known time, and need not be part of the commit: it is sent in this process
at once, and to others a moment later, one notification for all that has gathered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from qo.core.errors import QoError
from qo.core.verbs import Hint

log = logging.getLogger("qo.postgres")

GATHER_SECONDS = 0.05
LANES_LIMIT = 100_000


class LateHints:
    """The queues of lanes that this process claimed from, and the queues to notify other processes of."""

    def __init__(
        self,
        heard: Callable[[Hint], None],
        tell: Callable[[list[str]], Awaitable[object]],
        look_up: Callable[[list[int]], Awaitable[list[str]]],
    ) -> None:
        self._heard = heard
        self._tell = tell
        self._look_up = look_up
        self._unknown: set[int] = set()
        self._queues: dict[int, str | None] = {}
        self._unsent: set[str] = set()
        self._sending: asyncio.Task[None] | None = None

    def claimed(self, lane: int, queue: str | None) -> None:
        """This process claimed from a keyed lane of that queue; None: from an open one."""
        if len(self._queues) >= LANES_LIMIT:
            self._queues.clear()
        self._queues[lane] = queue

    def ended(self, lanes: Iterable[int]) -> None:
        """Leases of these lanes are over. What comes back to an open one is told in the commit."""
        ended = set(lanes)
        self._unknown |= ended - self._queues.keys()  # another process claimed from them
        self.may_have_work({queue for lane in ended if (queue := self._queues.get(lane)) is not None})

    def may_have_work(self, queues: set[str]) -> None:
        if queues:
            self._heard(Hint(frozenset(queues)))
        self._unsent |= queues
        if self._sending is None and (self._unsent or self._unknown):
            self._sending = asyncio.get_running_loop().create_task(self._notify_others())

    async def _notify_others(self) -> None:
        await asyncio.sleep(GATHER_SECONDS)
        names, self._unsent = self._unsent, set()
        lanes, self._unknown = sorted(self._unknown), set()
        self._sending = None
        try:
            if lanes and (found := set(await self._look_up(lanes)) - names):
                self._heard(Hint(frozenset(found)))
                names |= found
            if names:
                await self._tell(sorted(names))
        except QoError:
            log.info("others could not be told of queues that may have work; they will look in time")

    async def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
