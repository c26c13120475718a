"""enqueue: put a message into a queue from inside your own database transaction.

It writes to qo's intake with your connection and takes no lock that another
producer could wait for. Rolled back, it was never there; committed, it will run.
Works with asyncpg, psycopg 3, SQLAlchemy and Django, async and sync, without importing any
of them: a connection's type is known only if its module was imported.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from qo.client.outgoing import Message
from qo.client.tracing import with_trace
from qo.core.durations import Length
from qo.core.errors import Incompatible, Invalid
from qo.core.message import Dedupe, NewMessage, id_text, message_ids
from qo.core.names import DEFAULT_KIND, DEFAULT_SCHEMA, checked_schema

COLUMNS = (
    ("id", "uuid"),
    ("queue", "text"),
    ("payload", "bytea"),
    ("kind", "text"),
    ("key", "text"),
    ("priority", "integer"),
    ("headers", "text"),
    ("due_at", "timestamptz"),
    ("delay", "double precision"),
    ("ttl", "double precision"),
    ("dedupe", "jsonb"),
    ("notify", "boolean"),
)


def enqueue(
    connection: Any,
    queue: str,
    payload: Any,
    *,
    kind: str = DEFAULT_KIND,
    key: str | None = None,
    priority: int = 0,
    delay: Length | None = None,
    due_at: datetime | None = None,
    dedupe: str | Dedupe | None = None,
    headers: Mapping[str, str] | None = None,
    ttl: Length | None = None,
    notify: bool = True,
    schema: str = DEFAULT_SCHEMA,
) -> Any:
    """Enqueue one message in the transaction that `connection` is in; answers its id.

    With an async connection, await the answer. A dedupe key is judged when the
    message enters its lane: a duplicate ends as canceled. `notify=False` spares the
    notification, for producers that commit thousands of times a second; then brokers
    see the message when they next look.
    """
    checked_schema("schema", schema)
    [id] = message_ids(time.time_ns() // 1_000_000, secrets.randbits(80), 1)
    message = Message(payload, kind, key, priority, delay, due_at, dedupe, headers, ttl)
    [traced] = with_trace([message.addressed(queue, id)])
    return _driver_of(connection)(connection, schema, _values(traced, notify))


def _values(message: NewMessage, notify: bool) -> dict[str, Any]:
    dedupe = message.dedupe
    held = dedupe and {
        "key": dedupe.key,
        "window": None if dedupe.window is None else dedupe.window.total_seconds(),
        "scope": dedupe.scope.value,
    }
    return {
        "id": id_text(message.id),
        "queue": message.queue,
        "payload": message.payload,
        "kind": message.kind,
        "key": message.key,
        "priority": message.priority,
        "headers": json.dumps(dict(message.headers)) if message.headers else None,
        "due_at": message.due_at,
        "delay": None if message.delay is None else message.delay.total_seconds(),
        "ttl": None if message.ttl is None else message.ttl.total_seconds(),
        "dedupe": json.dumps(held) if held else None,
        "notify": notify,
    }


Values = dict[str, Any]
Driver = Callable[[Any, str, Values], "str | Awaitable[str]"]


def _driver_of(connection: Any) -> Driver:
    found = [
        (driver, kind)
        for module, driver, names in _KNOWN
        if module in sys.modules
        for name in names
        if (kind := getattr(sys.modules[module], name, None)) is not None
    ]
    for driver, kind in found:
        if isinstance(connection, kind):
            return driver
    raise Invalid(
        "connection",
        f"must be a connection of asyncpg, psycopg 3, SQLAlchemy or Django, not a {type(connection).__name__}",
    )


def _statement(schema: str, mark: Callable[[int, str], str]) -> str:
    holes = ", ".join(f"CAST({mark(number, name)} AS {kind})" for number, (name, kind) in enumerate(COLUMNS, 1))
    return f'SELECT "{schema}".enqueue({holes})'


NOT_THERE = ("3F000", "42883")
"""What PostgreSQL says of a schema, or a function, that does not exist."""


@contextlib.contextmanager
def _schema_named(schema: str) -> Iterator[None]:
    """Say what to do if qo was never installed there. Drivers and their wrappers keep the code in different places."""
    try:
        yield
    except Exception as error:
        causes = [error, getattr(error, "orig", None), error.__cause__]
        codes = {getattr(each, name, None) for each in causes for name in ("sqlstate", "pgcode")}
        if not codes & set(NOT_THERE):
            raise
        raise Incompatible(
            f"schema '{schema}' of this database has no qo in it; run `qo migrate postgresql://…` first, or name "
            "another one with schema="
        ) from error


def _mark_by_name(_: int, name: str) -> str:
    return f"%({name})s"


async def _asyncpg(connection: Any, schema: str, values: Values) -> str:
    with _schema_named(schema):
        await connection.execute(_statement(schema, lambda number, _: f"${number}"), *values.values())
    return str(values["id"])


async def _psycopg_async(connection: Any, schema: str, values: Values) -> str:
    with _schema_named(schema):
        await connection.execute(_statement(schema, _mark_by_name), values)
    return str(values["id"])


def _psycopg(connection: Any, schema: str, values: Values) -> str:
    with _schema_named(schema):
        connection.execute(_statement(schema, _mark_by_name), values)
    return str(values["id"])


def _django(connection: Any, schema: str, values: Values) -> str:
    if connection.vendor != "postgresql":
        raise Invalid("connection", f"must be of a PostgreSQL database, not of {connection.vendor}")
    with _schema_named(schema), connection.cursor() as cursor:
        cursor.execute(_statement(schema, _mark_by_name), values)
    return str(values["id"])


async def _sqlalchemy_async(connection: Any, schema: str, values: Values) -> str:
    text = sys.modules["sqlalchemy"].text
    with _schema_named(schema):
        await connection.execute(text(_statement(schema, lambda _, name: f":{name}")), values)
    return str(values["id"])


def _sqlalchemy(connection: Any, schema: str, values: Values) -> str:
    text = sys.modules["sqlalchemy"].text
    with _schema_named(schema):
        connection.execute(text(_statement(schema, lambda _, name: f":{name}")), values)
    return str(values["id"])


_KNOWN: tuple[tuple[str, Driver, tuple[str, ...]], ...] = (
    ("asyncpg", _asyncpg, ("Connection",)),
    ("asyncpg.pool", _asyncpg, ("PoolConnectionProxy",)),
    ("psycopg", _psycopg_async, ("AsyncConnection", "AsyncCursor")),
    ("psycopg", _psycopg, ("Connection", "Cursor")),
    ("sqlalchemy.ext.asyncio", _sqlalchemy_async, ("AsyncConnection", "AsyncSession")),
    ("sqlalchemy", _sqlalchemy, ("Connection",)),
    ("sqlalchemy.orm", _sqlalchemy, ("Session",)),
    ("django.utils.connection", _django, ("ConnectionProxy",)),
    ("django.db.backends.base.base", _django, ("BaseDatabaseWrapper",)),
)
