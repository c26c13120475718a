"""Every engine, under one suite. An engine is done when it passes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial

import pytest

from qo.core.verbs import Engine
from qo.stores.postgres.address import read_address
from qo.stores.postgres.engine import PostgresEngine
from qo.stores.postgres.pool import Connection
from qo.stores.sqlite.engine import SqliteEngine
from qo.testing.clock import ManualClock
from tests.conformance.remote import over_http
from tests.postgres import NEWEST, OLDEST, QUICK, Server, new_schema

GENERAL = "general"
ENGINES = [
    "sqlite-file",
    "sqlite-memory",
    f"postgres-{NEWEST}",
    f"postgres-{OLDEST}",
    f"postgres-{NEWEST}-repeatable read",
    f"postgres-{NEWEST}-serializable",
    f"postgres-{NEWEST}-{GENERAL}",
    "http-sqlite",
    "http-postgres",
]
"""A PostgreSQL whose transactions are not READ COMMITTED by default must make no difference.

Nor must it make one that the short paths are turned off, and the general functions do all.
"""
if chosen := os.environ.get("QO_ENGINES"):
    ENGINES = chosen.split(",")  # postgres-15 too, where the machine has it


SCHEMAS: dict[str, str] = {}
"""One for each server: making a schema takes longer than most tests."""


async def emptied(schema: str, connection: Connection, _: bool) -> None:
    """What the test before left."""
    rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
    names = ", ".join(f'"{schema}".{row[0]}' for row in rows if row[0] not in ("migrations", "defaults"))
    await connection.execute(f"TRUNCATE {names} RESTART IDENTITY")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[str, Server]]:
    """Started when a test first asks for one."""
    running: dict[str, Server] = {}
    yield running
    for server in running.values():
        server.remove()


def started(which: str) -> Server:
    """A server of some version and, if that is said, with another isolation level by default."""
    major, _, isolation = which.partition("-")
    more = {"default_transaction_isolation": isolation} if isolation else {}
    return Server(int(major), {**QUICK, **more}).start()


@pytest.fixture(params=ENGINES)
async def store(request, tmp_path, clock, servers) -> AsyncIterator[Engine]:
    kind, _, which = request.param.partition("-")
    behind_a_server = kind == "http"
    if behind_a_server:
        kind, which = which, "memory" if which == "sqlite" else str(NEWEST)
    engine: Engine
    if kind == "sqlite":
        path = ":memory:" if which == "memory" else str(tmp_path / "qo.db")
        engine = await SqliteEngine.open(path, synchronous="off", clock=clock.now, draw=lambda: 0.5)
    else:
        short_paths = not which.endswith(GENERAL)
        which = which.removesuffix(f"-{GENERAL}")
        server = servers.get(which) or servers.setdefault(which, started(which))
        schema = SCHEMAS.setdefault(which, new_schema())
        address = replace(read_address(server.url), schema=schema, wake="notify", pool=3)
        engine = await PostgresEngine.open(address, clock=clock.now, draw=lambda: 0.5, short_paths=short_paths)
        await engine.call.pool.call(partial(emptied, schema))
    if behind_a_server:
        async with over_http(engine, clock) as remote:
            yield remote
    else:
        yield engine
        await engine.close()
