"""Call: how a verb reaches the database. Its connections, its clock and draws, its keys, and who is told of hints."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import datetime
from typing import Any, Self

from qo.core.verbs import Hint
from qo.stores.postgres.address import Address
from qo.stores.postgres.keys import Keys
from qo.stores.postgres.late_hints import LateHints
from qo.stores.postgres.listener import Listener
from qo.stores.postgres.pool import Connection, Pool
from qo.stores.postgres.statements import Statements
from qo.stores.sealing import SealingKey

ITEMS_PER_DEADLINE = 1000
"""A call of more items than this may take as much longer: a deadline for each so many."""
ARRANGING_SECONDS = 270.0
"""How much longer a call may take that arranges things or tidies: it may concern a whole queue."""
ARRANGING = frozenset({
    "arrange", "advance", "cancel", "configure", "create_group", "delete_group", "delete_queue", "purge", "purge_dead",
    "retry_dead", "seek", "tidy",
})  # fmt: skip


ADVANCE_LIMIT = 1000
"""Rows that one transaction brings in or gives back at most."""
ADVANCE_ROUNDS = 50
"""Times that a claim makes way for what must come before it."""


class Call:
    """What every verb is given. One for an engine; bound to a connection, one for a transaction that is under way."""

    def __init__(
        self,
        address: Address,
        *,
        clock: Callable[[], datetime] | None = None,
        draw: Callable[[], float] | None = None,
        probe: Callable[[str, list[str]], None] | None = None,
        key: SealingKey | None = None,
        short_paths: bool = True,
    ) -> None:
        self.address = address
        self.sql = Statements(address.schema)
        self.keys = Keys(key, self.sql, self.run)
        self.pool = Pool(address)
        self.short_paths = short_paths
        """Whether common cases use their short functions; off, the general functions handle everything."""
        self._clock = clock
        self._draw = draw
        self._probe = probe
        self._bound: Connection | None = None
        self.heard: Callable[[Hint], None] = lambda _: None
        """The callback for hints in this process."""
        self.asked: dict[tuple[tuple[str, ...], str], float] = {}
        """When what time has changed was last looked for, by queues and group."""
        self.listener = Listener(self.pool, self.hint)
        self.late_hints = LateHints(
            self.hint,
            lambda names: self.value("tell", self.sql.tell, names),
            lambda lanes: self.value("tell", self.sql.queues_of_keyed, lanes),
        )

    async def close(self) -> None:
        await self.late_hints.close()
        await self.listener.close()
        await self.pool.close()

    @property
    def now(self) -> datetime | None:
        """The time that functions are given; None: the server's own."""
        return None if self._clock is None else self._clock()

    @property
    def draw(self) -> float | None:
        """What spreads a backoff, from 0 to 1; None: the server's own."""
        return None if self._draw is None else self._draw()

    def store_now(self) -> datetime:
        """The server's time, as far as this process knows it."""
        return self.pool.clock.now() if self._clock is None else self._clock()

    def hint(self, hint: Hint) -> None:
        """Tell this process that asking may be worth it; also who begins to listen after this object was made."""
        self.heard(hint)

    def on(self, connection: Connection) -> Self:
        """A copy that makes all its calls on one connection, inside a transaction that is under way."""
        bound = copy.copy(self)
        bound._bound = connection  # noqa: SLF001 - a copy of this object
        return bound

    async def run(self, name: str, work: Callable[[Connection, bool], Any], *, items: int = 1) -> Any:
        """Run a verb, telling the probe, if there is one, of its commit."""
        if self._bound is not None:
            return await work(self._bound, False)
        extra = ARRANGING_SECONDS if name in ARRANGING else self.pool.deadline_seconds * (items // ITEMS_PER_DEADLINE)
        if self._probe is None:
            return await self.pool.call(work, extra_seconds=extra)
        self._probe("before commit", [name])
        answer = await self.pool.call(work, extra_seconds=extra)
        self._probe("after commit", [name])
        return answer

    async def value(self, name: str, sql: str, *values: Any) -> Any:
        """One value from one statement."""
        return await self.run(name, lambda connection, _: connection.fetchval(sql, *values))
