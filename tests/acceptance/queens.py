"""Queen's published client, unmodified, against a server of ours: on both stores, with a clock that tests move."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, NamedTuple

import aiohttp

from qo.broker.broker import LocalBroker
from qo.core.verbs import Engine
from qo.server.settings import JwtSettings, ListenSettings, QueenSettings
from qo.stores.postgres.address import read_address
from qo.stores.postgres.engine import PostgresEngine
from qo.stores.sqlite.engine import SqliteEngine
from qo.testing.clock import ManualClock
from queen import Queen
from tests.conformance.remote import Running, serving
from tests.postgres import Server, new_schema

STORES = ["sqlite", "postgres"]


class Court(NamedTuple):
    """A client, the server that it speaks to, its store, and the time."""

    queen: Queen
    server: Running
    store: Engine
    clock: ManualClock
    session: aiohttp.ClientSession

    async def ask(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        """A call that the client would not make: status and answer."""
        async with self.session.request(method, path, json=body, **options) as answer:
            content = await answer.read()
            return answer.status, await answer.json() if content else None


async def open_store(kind: str, database: Server | None, clock: ManualClock) -> Engine:
    if kind == "sqlite":
        return await SqliteEngine.open(":memory:", clock=clock.now, draw=lambda: 0.5)
    assert database is not None
    address = replace(read_address(database.url), schema=new_schema(), wake="notify", pool=5)
    return await PostgresEngine.open(address, clock=clock.now, draw=lambda: 0.5)


@contextlib.asynccontextmanager
async def holding_court(
    store: Engine,
    clock: ManualClock,
    *,
    listen: ListenSettings | None = None,
    jwt: JwtSettings | None = None,
    queen: QueenSettings | None = None,
    **client: Any,
) -> AsyncIterator[Court]:
    broker = LocalBroker(store, clock=clock)
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}  # the client takes them
    async with (
        serving(broker, listen=listen, jwt=jwt, queen=queen) as server,
        aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        client_of_queen = Queen(url=server.url, retry_attempts=1, **client)
        try:
            yield Court(client_of_queen, server, store, clock, session)
        finally:
            await client_of_queen.close()
            for each, handler in before.items():
                signal.signal(each, handler)
