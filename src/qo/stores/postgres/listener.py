"""Hints from other processes: one connection that listens.

It listens before the first claim is made; a process that only pushes has none. When it is lost everything is asked
again after it is back, because nobody knows what was missed. Where listening does
not work (a transaction pooler in between), the broker polls. A connection may be alive
and mute, so the broker has it verified now and then, while someone waits: one
notification, to a channel of this listener alone, must come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg

from qo.core.backoff import LoopBackoff
from qo.core.errors import Closed
from qo.core.message import MessageId
from qo.core.verbs import EVERYTHING, Hint
from qo.stores.postgres.failures import LOST, RETRIED
from qo.stores.postgres.pool import Connection, Pool, keep_alive

log = logging.getLogger("qo.postgres")

PROBE_SECONDS = 3.0
VOUCH = "SELECT pg_advisory_lock_shared(hashtextextended($1 || ' ' || id, 0)) FROM unnest($2::text[]) id"
STOP_VOUCHING = "SELECT pg_advisory_unlock_shared(hashtextextended($1 || ' ' || id, 0)) FROM unnest($2::text[]) id"
"""A lock that nobody waits for says that a worker lives: it ends with the session, and `pg_locks` shows it."""
KEPT_LIMIT = 1000
"""A server has room for some thousands of locks, for all."""


class Listener:
    """Keeps listening until closed. `must_poll` if it cannot."""

    def __init__(self, pool: Pool, heard: Callable[[Hint], None]) -> None:
        self._pool = pool
        self._heard = heard
        self._channel = pool.address.schema
        self._own_channel = f"{self._channel[:20]}_{secrets.token_hex(8)}"
        """Where probes come back, and nothing else."""
        self._connection: Connection | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._probes: dict[str, asyncio.Event] = {}
        self._opening = asyncio.Lock()
        self._kept: set[str] = set()
        self._speaking = asyncio.Lock()
        self._closed = False
        self.must_poll = pool.address.wake == "poll"
        self.is_open = self.must_poll

    async def open(self) -> None:
        """Listen, and find out whether that works; once."""
        async with self._opening:
            if not self.is_open:
                await self._open()
                self.is_open = True

    async def _open(self) -> None:
        await self._pool.call(self._listen_first)
        if self._pool.address.wake == "auto" and not await self._probe():
            await self._give_up_listening()

    async def _give_up_listening(self) -> None:
        log.warning("the database does not pass notifications on (a pooler?); qo polls instead (?wake=poll)")
        self.must_poll = True
        await self._hang_up()

    async def verify(self) -> None:
        """Make sure that notifications still come. If not, listen anew; if that is in vain too, poll from now on."""
        async with self._opening:
            if self.must_poll or not self.is_open or self._is_reconnecting() or await self._probe():
                return
            if self._is_reconnecting():  # it was lost meanwhile: whoever brings it back asks for everything
                return
            log.warning("notifications do not come any more, though the connection is there; listening anew")
            await asyncio.wait([self._begin_reconnecting()])
            if self._pool.address.wake == "auto" and not await self._probe() and not self._is_reconnecting():
                await self._give_up_listening()
                self._heard(EVERYTHING)

    async def adopt(self, ids: Sequence[str]) -> bool:
        """Vouch for these workers, for as long as this session lasts; those that come after it do the same.

        False: there are too many already.
        """
        async with self._speaking:
            fresh = [id for id in ids if id not in self._kept]
            if len(self._kept) + len(fresh) > KEPT_LIMIT:
                return False
            await self._say(VOUCH, fresh)
            self._kept.update(fresh)
            return True

    async def disown(self, ids: Sequence[str]) -> None:
        async with self._speaking:
            kept = [id for id in ids if id in self._kept]
            self._kept.difference_update(kept)
            await self._say(STOP_VOUCHING, kept)

    async def _say(self, sql: str, ids: Sequence[str]) -> None:
        if ids and self._connection is not None:
            with contextlib.suppress(*LOST, asyncpg.InterfaceError):
                await self._connection.execute(sql, self._channel, ids)  # else the next session will

    async def close(self) -> None:
        self._closed = True
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.gather(self._reconnecting, return_exceptions=True)
        await self._hang_up()

    async def _listen_first(self, _: Connection, __: bool) -> None:
        """Inside a pool's call, so that it is tried again as calls are."""
        await self._listen()

    async def _listen(self) -> None:
        await self._hang_up()
        arguments = self._pool.connect_arguments()
        connection: Connection = await asyncpg.connect(**arguments)
        try:
            keep_alive(connection)
            await connection.add_listener(self._channel, self._notified)
            await connection.add_listener(self._own_channel, self._notified)
            async with self._speaking:
                if self._kept:
                    await connection.execute(VOUCH, self._channel, list(self._kept))
                if self._closed:
                    raise Closed("this store was closed")
                connection.add_termination_listener(self._lost)
                self._connection = connection
        except BaseException:
            connection.terminate()
            raise

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            with contextlib.suppress(*LOST, asyncpg.PostgresError):
                await connection.close(timeout=2)

    async def _probe(self) -> bool:
        word = secrets.token_hex(8)
        heard = self._probes[word] = asyncio.Event()
        try:
            text = json.dumps({"probe": word})
            await self._pool.call(lambda c, _: c.execute("SELECT pg_notify($1, $2)", self._own_channel, text))
            await asyncio.wait_for(heard.wait(), PROBE_SECONDS)
        except TimeoutError:
            return False
        finally:
            del self._probes[word]
        return True

    def _notified(self, _: object, __: int, ___: str, payload: object) -> None:
        try:
            said: Any = None if payload == "*" else json.loads(str(payload))
        except ValueError:
            said = None
        if isinstance(said, list):
            self._heard(Hint(frozenset(map(str, said))))
        elif isinstance(said, dict) and "finished" in said:
            ids = frozenset(MessageId(bytes.fromhex(str(id).replace("-", ""))) for id in said["finished"] or ())
            self._heard(Hint(frozenset(), ids))
        elif isinstance(said, dict) and "records" in said:
            self._heard(Hint(records=frozenset(map(str, said["records"]))))
        elif isinstance(said, dict) and "probe" in said:
            if said["probe"] in self._probes:
                self._probes[said["probe"]].set()
        else:
            self._heard(EVERYTHING)

    def _lost(self, connection: object) -> None:
        if not self._closed and connection is self._connection:
            self._connection = None
            self._begin_reconnecting()

    def _is_reconnecting(self) -> bool:
        return self._reconnecting is not None

    def _begin_reconnecting(self) -> asyncio.Task[None]:
        """One at a time, however it was noticed that nothing is heard any more."""
        if self._reconnecting is None:
            self._reconnecting = asyncio.get_running_loop().create_task(self._reconnect())
        return self._reconnecting

    async def _reconnect(self) -> None:
        backoff = LoopBackoff()
        try:
            while not self._closed:
                try:
                    await self._listen()
                except (*LOST, *RETRIED, asyncpg.PostgresError):
                    await asyncio.sleep(backoff.failed())
                else:
                    log.info("listening again")
                    self._heard(EVERYTHING)
                    return
        finally:
            self._reconnecting = None
