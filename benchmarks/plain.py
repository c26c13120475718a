"""The limits on PostgreSQL: the same work with no queue's promises, in the plainest statements."""

from __future__ import annotations

import asyncio
import json
import time

import asyncpg

PAYLOAD = b'{"customer":12345,"text":"' + b"x" * 150 + b'"}'
COPIED_AT_ONCE = 1000
READ_AT_ONCE = 100
PICKUP_GAP_SECONDS = 0.02


async def plain_copy(dsn: str, count: int) -> float:
    """Rows per second: COPY of the same payload into a table with a primary key."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("CREATE TABLE copied (id bigint PRIMARY KEY, payload bytea, created_at timestamptz)")
    now = await connection.fetchval("SELECT now()")
    began = time.perf_counter()
    for start in range(0, count, COPIED_AT_ONCE):
        rows = [(start + number, PAYLOAD, now) for number in range(COPIED_AT_ONCE)]
        await connection.copy_records_to_table("copied", records=rows)
    rate = count / (time.perf_counter() - began)
    await connection.close()
    return rate


async def plain_cursor(dsn: str, count: int) -> float:
    """Rows per second: read the next hundred and move a cursor row, one commit each."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("CREATE TABLE log (id bigint PRIMARY KEY, payload bytea)")
    await connection.execute("CREATE TABLE place (position bigint); INSERT INTO place VALUES (0)")
    await connection.copy_records_to_table("log", records=[(number, PAYLOAD) for number in range(count)])
    began = time.perf_counter()
    position = 0
    while rows := await connection.fetch(
        "SELECT * FROM log WHERE id >= $1 ORDER BY id LIMIT $2", position, READ_AT_ONCE
    ):
        position = rows[-1][0] + 1
        await connection.execute("UPDATE place SET position = $1", position)
    rate = count / (time.perf_counter() - began)
    await connection.close()
    return rate


async def plain_pickups(dsn: str, count: int) -> list[float]:
    """Milliseconds from an INSERT with NOTIFY to the answer of the UPDATE that claims the row, both in one process."""
    producer, consumer = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    await producer.execute(
        "CREATE TABLE jobs (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload jsonb, at timestamptz)"
    )
    told = asyncio.Event()
    await consumer.add_listener("plain", lambda *_: told.set())
    times = []
    for _ in range(count):
        await asyncio.sleep(PICKUP_GAP_SECONDS)
        began = time.perf_counter()
        insert = producer.execute(
            "WITH i AS (INSERT INTO jobs (payload) VALUES ($1)) SELECT pg_notify('plain', '')",
            json.dumps(PAYLOAD.decode()),
        )
        pushing = asyncio.ensure_future(insert)
        await told.wait()
        told.clear()
        await consumer.fetchval(
            "UPDATE jobs SET at = now() WHERE id = (SELECT id FROM jobs WHERE at IS NULL ORDER BY id LIMIT 1 "
            "FOR UPDATE SKIP LOCKED) RETURNING payload"
        )
        times.append((time.perf_counter() - began) * 1000)
        await pushing
    await producer.close()
    await consumer.close()
    return times
