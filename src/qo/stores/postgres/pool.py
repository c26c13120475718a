"""Connections, and calls that survive the loss of one.

A call is tried again, with backoff and inside its deadline, as long as that is
safe: the server undid it, or it never got there. If the connection was lost while
the call was under way, nobody knows whether it was committed; then the call is
made again with `again=True`, and the verb looks the truth up instead of guessing.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import asyncpg

from qo.core.errors import Closed, Invalid, Unavailable
from qo.stores.postgres.address import Address
from qo.stores.postgres.failures import LOST, RETRIED, translated

log = logging.getLogger("qo.postgres")

T = TypeVar("T")
if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]
else:
    Connection = asyncpg.Connection
Work = Callable[[Connection, bool], Awaitable[T]]

APPLICATION_NAME = "qo"
DEADLINE_SECONDS = 30.0
"""How long a call waits for the database, so that one that sleeps has time to wake."""
FIRST_REST_SECONDS = 0.02
LONGEST_REST_SECONDS = 1.0
CONNECT_TIMEOUT_SECONDS = 10.0
KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 25_000))
"""A server that does not answer for about 25 seconds is gone."""


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
    """At most so many connections, opened when needed."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.deadline_seconds = DEADLINE_SECONDS
        self._closed = False
        self._pool: asyncpg.Pool[Any] | None = None

    def connect_arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "dsn": self.address.dsn,
            "timeout": CONNECT_TIMEOUT_SECONDS,
            "server_settings": {"application_name": APPLICATION_NAME},
        }
        if self.address.pooler == "transaction":
            arguments["statement_cache_size"] = 0
        return arguments

    async def call(self, work: Work[T]) -> T:
        """Run `work` on a connection; again, if that is safe or the work can look up what became of it."""
        loop = asyncio.get_running_loop()
        limit = self.deadline_seconds
        deadline = loop.time() + limit
        rest, unsure = FIRST_REST_SECONDS, False
        while True:
            if self._closed:
                raise Closed("this store was closed")
            began = False
            try:
                pool = await self._open()
                async with pool.acquire(timeout=max(deadline - loop.time(), 0.001)) as connection:
                    began = True
                    return await work(cast("Connection", connection), unsure)
            except asyncpg.DataError as error:  # the driver's: it could not say this to the server
                raise Invalid("value", f"cannot be said to PostgreSQL ({error})") from error
            except RETRIED as error:
                cause: BaseException = error
            except LOST as error:
                cause = error
                unsure = unsure or began
            except asyncpg.PostgresError as error:
                raise translated(error) from error
            if loop.time() + rest >= deadline:
                raise _gave_up(cause, limit) from cause
            log.info("the database failed (%s); trying again in %.2f s", type(cause).__name__, rest)
            await asyncio.sleep(rest * (0.5 + random.random()))  # noqa: S311 - no secret
            rest = min(rest * 2, LONGEST_REST_SECONDS)

    async def close(self) -> None:
        self._closed = True
        if self._pool is not None:
            try:
                await asyncio.wait_for(self._pool.close(), 5)
            except (TimeoutError, asyncpg.InterfaceError, OSError):
                self._pool.terminate()

    async def _open(self) -> asyncpg.Pool[Any]:
        if self._pool is None:
            self._pool = asyncpg.create_pool(
                min_size=0,
                max_size=self.address.pool,
                max_inactive_connection_lifetime=0,
                init=set_up,
                reset=_leave_as_it_is,
                **self.connect_arguments(),
            )
            await self._pool
        return self._pool


async def _leave_as_it_is(connection: Connection) -> None:
    """Nothing of ours is kept in a session, so there is nothing to reset: that would be a round trip per call."""


def _gave_up(cause: BaseException, limit: float) -> BaseException:
    told = translated(cause)
    if isinstance(told, Unavailable):
        return type(told)(f"{told} (tried for {limit:g} s)")
    return told
