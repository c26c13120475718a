"""Connections, and calls that survive the loss of one.

A call is tried again, with backoff and inside its deadline, as long as that is
safe: the server undid it, or it never got there. If the connection was lost while
the call was under way, nobody knows whether it was committed; then the call is
made again with `again=True`, and the verb looks the truth up instead of guessing.
A call that passes its deadline is abandoned, and its connection with it.

Every verb needs READ COMMITTED: it locks, then looks, and must see what others
committed while it waited for the lock. Where the database, the role or a pooler says
otherwise, each call has a transaction of its own that says READ COMMITTED. Nothing is
set in the session: a pooler would lose it, or hand it to another program.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

from qo.core.backoff import LoopBackoff
from qo.core.errors import Closed, Incompatible, Invalid, Unavailable
from qo.metrics.steady import steady_seconds
from qo.stores.postgres.address import Address
from qo.stores.postgres.failures import DEMOTED, LOST, RETRIED, Signal, signal_of, translated

log = logging.getLogger("qo.postgres")

T = TypeVar("T")
if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]
else:
    Connection = asyncpg.Connection
Work = Callable[[Connection, bool], Awaitable[T]]

APPLICATION_NAME = "qo"
DEADLINE_SECONDS = 30.0
"""How long a call may take in all; long enough for a database that sleeps to wake."""
READ_COMMITTED = "read committed"
"""How the functions refuse to run in any other isolation level."""
ABOUT_SERVER = "SELECT clock_timestamp(), current_setting('default_transaction_isolation')"
FIRST_REST_SECONDS = 0.02
LONGEST_REST_SECONDS = 1.0
CONNECT_TIMEOUT_SECONDS = 10.0
CLOSE_TIMEOUT_SECONDS = 5.0
KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 25_000))
"""A server that does not answer for about 25 seconds is gone."""


class ServerClock:
    """The database's time, as far as this process knows: read when a connection opens, then carried on steadily.

    Neither clock of this machine matters: not one that is wrong, and not one that is put back.
    """

    def __init__(self) -> None:
        self._read = datetime.now(UTC)
        self._read_at = steady_seconds()

    def set(self, now: datetime) -> None:
        self._read, self._read_at = now, steady_seconds()

    def now(self) -> datetime:
        return self._read + timedelta(seconds=steady_seconds() - self._read_at)


async def set_up(connection: Connection) -> None:
    """Ids are bytes on both sides: no object is made of them."""
    await connection.set_type_codec("uuid", schema="pg_catalog", encoder=bytes, decoder=bytes, format="binary")
    keep_alive(connection)


def keep_alive(connection: Connection) -> None:
    """Notice a server that is silently gone, also while waiting for it: our end of the socket must ask."""
    own = getattr(connection, "_transport", None)  # the driver has no public name for it
    opened = None if own is None else own.get_extra_info("socket")
    if opened is None or opened.family not in (socket.AF_INET, socket.AF_INET6):
        return
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE:
        if (option := getattr(socket, name, None)) is not None:
            opened.setsockopt(socket.IPPROTO_TCP, option, value)


class Pool:
    """At most so many connections, opened when needed; the one that was used last is used next.

    Our own, because a call is one statement: a driver's pool spends several turns of the event loop on lending and
    taking back, which is as long as the statement takes. Nothing of ours is kept in a session: nothing is to be reset.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.deadline_seconds = DEADLINE_SECONDS
        self.clock = ServerClock()
        self.default_isolation = READ_COMMITTED
        """What a transaction has unless it says otherwise; where that is something else, each call says it."""
        self._closed = self._away = False
        self._free: list[Connection] = []
        self._lent: set[Connection] = set()
        self._opening = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._called = 0
        """Calls whose turn it is and that have not run yet: a call that arrives just now must not overtake them."""

    def connect_arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "dsn": self.address.dsn,
            "timeout": CONNECT_TIMEOUT_SECONDS,
            "server_settings": {"application_name": APPLICATION_NAME},
        }
        if self.address.pooler == "transaction":
            arguments["statement_cache_size"] = 0
        return arguments

    async def call(self, work: Work[T], *, extra_seconds: float = 0.0, own_transaction: bool = False) -> T:
        """Run `work` on a connection; again, if that is safe or the work can look up what became of it.

        `extra_seconds`: how much longer than usual it may take. `own_transaction`: the work says its isolation level.
        """
        loop = asyncio.get_running_loop()
        limit = self.deadline_seconds + extra_seconds
        deadline = loop.time() + limit
        backoff, unsure = LoopBackoff(FIRST_REST_SECONDS, LONGEST_REST_SECONDS), False
        while True:
            if self._closed:
                raise Closed("this store was closed")
            began, pinned = False, self.default_isolation != READ_COMMITTED
            try:
                connection = self._take() or await self._wait_or_open(deadline)
                began = True
                async with asyncio.timeout_at(deadline):
                    return await self._run(connection, work, unsure, own_transaction)
            except asyncpg.DataError as error:
                if type(error) is not asyncpg.DataError:
                    raise translated(error) from error
                # The driver's: it could not say this to the server.
                raise Invalid("value", f"cannot be said to PostgreSQL ({error})") from error
            except (*RETRIED, *DEMOTED) as error:
                cause: BaseException = error
            except LOST as error:
                cause = error
                unsure = unsure or began
            except asyncpg.PostgresError as error:
                self._pin_isolation(error, pinned)
                continue
            rest = backoff.failed()
            if loop.time() + rest >= deadline:
                raise _gave_up(cause, limit, unsure) from cause
            self._note_failure(cause, limit)
            await asyncio.sleep(rest * (0.5 + random.random()))  # noqa: S311 - no secret

    def _note_failure(self, cause: BaseException, limit: float) -> None:
        """Say that the database is away once, until it answers again."""
        if isinstance(cause, LOST) and not self._away:
            self._away = True
            log.warning("%s; trying again for up to %g s", translated(cause), limit)
        else:
            log.info("the database failed (%s); trying again", type(cause).__name__)

    def _pin_isolation(self, error: asyncpg.PostgresError, pinned: bool) -> None:
        """Say READ COMMITTED from now on, if the lack of it is what a try without it met; else raise what it met."""
        found = signal_of(error)
        if found is None or found[0] is not Signal.ISOLATION:
            raise translated(error) from error
        if pinned:
            raise Incompatible(f"transactions cannot be made READ COMMITTED here ({error})") from error
        if self.default_isolation == READ_COMMITTED:
            self.default_isolation = "unknown"

    async def _run(self, connection: Connection, work: Work[T], unsure: bool, own_transaction: bool) -> T:
        """Run on a lent connection and take it back, unless it was left in the middle of something."""
        cut_off = False
        try:
            if self.default_isolation == READ_COMMITTED or own_transaction:
                return await work(connection, unsure)
            async with connection.transaction(isolation="read_committed"):
                return await work(connection, unsure)
        except asyncio.CancelledError:
            cut_off = True
            raise
        except DEMOTED:  # the others may lead to the same server, which cannot be written any more
            cut_off = True
            self._drop_free()
            raise
        finally:
            self._lent.discard(connection)
            if self._closed or cut_off or connection.is_closed() or connection.is_in_transaction():
                connection.terminate()
            else:
                self._free.append(connection)
            self._let_next_in()

    def _drop_free(self) -> None:
        free, self._free = self._free, []
        for connection in free:
            connection.terminate()

    async def close(self) -> None:
        """Calls that are under way lose their connection."""
        self._closed = True
        for connection in self._lent:
            connection.terminate()
        free, self._free = self._free, []
        await asyncio.gather(*(_hang_up(connection) for connection in free))
        self._let_next_in()

    def _take(self) -> Connection | None:
        """A free connection that is still open, and is not for those whose turn it is."""
        while len(self._free) > self._called:
            connection = self._free.pop()
            if not connection.is_closed():
                self._lent.add(connection)
                return connection
        return None

    async def _wait_or_open(self, deadline: float) -> Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout_at(max(deadline, loop.time() + 0.001)):
            while len(self._lent) + self._opening + self._called >= self.address.pool:
                turn = loop.create_future()
                self._waiting.append(turn)
                try:
                    await turn
                except BaseException:
                    if turn.done() and not turn.cancelled():  # it was our turn, and we are gone
                        self._called -= 1
                        self._let_next_in()
                    raise
                self._called -= 1
                if self._closed:
                    raise Closed("this store was closed")
                if (connection := self._take()) is not None:
                    return connection
            self._opening += 1
            try:
                connection = await self._connect()
            except BaseException:
                self._let_next_in()
                raise
            finally:
                self._opening -= 1
        self._lent.add(connection)
        return connection

    async def _connect(self) -> Connection:
        connection: Connection = await asyncpg.connect(**self.connect_arguments())
        try:
            await self._set_up(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _set_up(self, connection: Connection) -> None:
        await set_up(connection)
        now, isolation = await connection.fetchrow(ABOUT_SERVER)  # type: ignore[misc]  # it answers one row
        self.clock.set(now)
        self._away = False
        if isolation != READ_COMMITTED:
            self.default_isolation = isolation

    def _let_next_in(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._called += 1
                if not self._closed:
                    return


async def _hang_up(connection: Connection) -> None:
    try:
        await connection.close(timeout=CLOSE_TIMEOUT_SECONDS)
    except (*LOST, asyncpg.PostgresError):
        connection.terminate()


def _gave_up(cause: BaseException, limit: float, unsure: bool) -> BaseException:
    told = translated(cause)
    if not isinstance(told, Unavailable):
        return told
    doubt = "; it may have been done: repeat it, and qo looks that up" if unsure else ""
    return type(told)(f"{told} (tried for {limit:g} s{doubt})")


def undone_on_error(connection: Connection) -> Any:
    """Inside a transaction, a savepoint; alone, a statement is a transaction by itself."""
    return connection.transaction() if connection.is_in_transaction() else _Nothing()


class _Nothing:
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...
