"""Hints after a commit: a keyed lane whose lease has ended may have more, of the same kind as before.

Whoever else waits for it knows when that lease would have run out, so the hint only
beats a known time, and need not be part of the commit: it is told in this process
at once, and to others a moment later, one notification for all that has gathered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from qo.core.errors import QoError
from qo.stores.store import Hint

log = logging.getLogger("qo.postgres")

GATHER_SECONDS = 0.05
LANES_LIMIT = 100_000


class Afterwards:
    """Which queue a lane is of, as far as this process claimed from it; and what others are to be told."""

    def __init__(self, heard: Callable[[Hint], None], tell: Callable[[list[str]], Awaitable[object]]) -> None:
        self._heard = heard
        self._tell = tell
        self._queues: dict[int, str] = {}
        self._untold: set[str] = set()
        self._telling: asyncio.Task[None] | None = None

    def claimed(self, lane: int, queue: str) -> None:
        if len(self._queues) >= LANES_LIMIT:
            self._queues.clear()
        self._queues[lane] = queue

    def ended(self, lanes: Iterable[int]) -> None:
        """Leases of these lanes are over. Open lanes were not noted: what comes back to them is told in the commit."""
        found = {self._queues[lane] for lane in set(lanes) if lane in self._queues}
        if found:
            self.may_have_work(found)

    def may_have_work(self, queues: set[str]) -> None:
        self._heard(Hint(frozenset(queues)))
        self._untold |= queues
        if self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._tell_others())

    async def _tell_others(self) -> None:
        await asyncio.sleep(GATHER_SECONDS)
        names, self._untold = sorted(self._untold), set()
        self._telling = None
        try:
            await self._tell(names)
        except QoError:
            log.info("others could not be told of queues that may have work; they will look in time")

    async def close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
