"""qo on PostgreSQL, beside the plain limit (COPY, and a cursor row that is moved), in one run.

Cases run in interleaved rounds and medians are printed. The server is the newest of
the test servers, with its default durability (fsync and synchronous_commit on). Usage:
python -m benchmarks.postgres [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from tests.postgres import Server, new_schema

import qo

PAYLOAD = {"customer": 12345, "text": "x" * 150}
PAYLOAD_BYTES = b'{"customer":12345,"text":"' + b"x" * 150 + b'"}'
BATCH = 100


class Sizes:
    def __init__(self, quick: bool) -> None:
        self.rounds = 3 if quick else 5
        self.singles = 100 if quick else 500
        self.at_once = 800 if quick else 8_000
        self.bulk = 5_000 if quick else 50_000
        self.drain = 5_000 if quick else 30_000
        self.pickups = 30 if quick else 200
        self.groups = 10


@asynccontextmanager
async def fresh(server: Server, **settings) -> AsyncIterator[tuple[qo.Client, qo.Queue]]:
    async with qo.connect(f"{server.url}&schema={new_schema()}") as client:
        queue = client.queue("q")
        await queue.configure(**settings)
        await queue.push(PAYLOAD)
        await queue.complete_many(await queue.claim(1))
        yield client, queue


async def one_by_one(server: Server, count: int) -> float:
    async with fresh(server) as (_, queue):
        began = time.perf_counter()
        for _ in range(count):
            await queue.push(PAYLOAD)
        return count / (time.perf_counter() - began)


async def at_once(server: Server, count: int, callers: int) -> float:
    """So many callers in one process, each waiting for its own push: the broker commits them together."""
    async with fresh(server) as (_, queue):

        async def caller() -> None:
            for _ in range(count // callers):
                await queue.push(PAYLOAD)

        began = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(callers)))
        return count / (time.perf_counter() - began)


async def bulk(server: Server, count: int) -> float:
    async with fresh(server) as (_, queue):
        began = time.perf_counter()
        for _ in range(0, count, 1000):
            await queue.push_many([qo.Message(PAYLOAD) for _ in range(1000)])
        return count / (time.perf_counter() - began)


async def drain(server: Server, count: int, groups: int = 1, **settings) -> float:
    """Claim and complete in batches of 100 by one process, four of them under way at a time."""
    async with fresh(server, **settings) as (_, queue):
        queues = [queue] + [queue.group(f"g{number}") for number in range(groups - 1)]
        for each in queues[1:]:
            await each.register()
        for _ in range(0, count, 1000):
            await queue.push_many([qo.Message(PAYLOAD) for _ in range(1000)])

        async def consumer(own: qo.Queue) -> int:
            done = 0
            while deliveries := await own.claim(BATCH):
                await own.complete_many(deliveries)
                done += len(deliveries)
            return done

        began = time.perf_counter()
        done = await asyncio.gather(*(consumer(each) for each in queues for _ in range(max(4 // groups, 1))))
        return sum(done) / (time.perf_counter() - began)


async def plain_copy(server: Server, count: int) -> float:
    """The limit of a bulk enqueue: COPY of the same payload into a table with a primary key."""
    connection = await asyncpg.connect(server.url)
    name = new_schema()
    await connection.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, payload bytea, created_at timestamptz)")
    now = await connection.fetchval("SELECT now()")
    began = time.perf_counter()
    for start in range(0, count, 1000):
        rows = [(start + number, PAYLOAD_BYTES, now) for number in range(1000)]
        await connection.copy_records_to_table(name, records=rows)
    rate = count / (time.perf_counter() - began)
    await connection.close()
    return rate


async def plain_cursor(server: Server, count: int) -> float:
    """The limit of a drain: read the next 100 and move a cursor row, one commit each."""
    connection = await asyncpg.connect(server.url)
    name = new_schema()
    await connection.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, payload bytea)")
    await connection.execute(f"CREATE TABLE {name}_cursor (position bigint); INSERT INTO {name}_cursor VALUES (0)")
    await connection.copy_records_to_table(name, records=[(number, PAYLOAD_BYTES) for number in range(count)])
    began = time.perf_counter()
    position = 0
    while rows := await connection.fetch(f"SELECT * FROM {name} WHERE id >= $1 ORDER BY id LIMIT {BATCH}", position):
        position = rows[-1][0] + 1
        await connection.execute(f"UPDATE {name}_cursor SET position = $1", position)
    rate = count / (time.perf_counter() - began)
    await connection.close()
    return rate


async def pickup(server: Server, count: int) -> list[float]:
    """From push in one process-like client to the waiting claim's answer in another, in milliseconds."""
    times = []
    url = f"{server.url}&schema={new_schema()}"
    async with qo.connect(url) as producer, qo.connect(url) as consumer:
        queue, other = producer.queue("q"), consumer.queue("q")
        for _ in range(count):
            waiting = asyncio.create_task(other.claim(1, wait=10))
            await asyncio.sleep(0.02)
            began = time.perf_counter()
            await queue.push(PAYLOAD)
            [delivery] = await waiting
            times.append((time.perf_counter() - began) * 1000)
            await delivery.complete()
    return sorted(times)


@asynccontextmanager
async def old_snapshot(server: Server) -> AsyncIterator[None]:
    """A transaction that looks at the database once and stays open, as a long report does."""
    connection = await asyncpg.connect(server.url)
    await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class")
    try:
        yield
    finally:
        await connection.execute("ROLLBACK")
        await connection.close()


async def rounds(server: Server, sizes: Sizes) -> dict[str, float]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(sizes.rounds):
        found["enqueue, one by one"].append(await one_by_one(server, sizes.singles))
        found["enqueue, 16 at once"].append(await at_once(server, sizes.at_once, 16))
        found["enqueue, bulk of 1000"].append(await bulk(server, sizes.bulk))
        found["plain COPY of 1000"].append(await plain_copy(server, sizes.bulk))
        found["drain, history none"].append(await drain(server, sizes.drain, history="none"))
        found["drain, history outcome"].append(await drain(server, sizes.drain))
        found["plain cursor"].append(await plain_cursor(server, sizes.drain))
        found[f"deliveries to {sizes.groups} groups"].append(
            await drain(server, sizes.drain // 5, groups=sizes.groups, history="none")
        )
        async with old_snapshot(server):
            found["drain, history none, old snapshot"].append(await drain(server, sizes.drain, history="none"))
    return {name: statistics.median(rates) for name, rates in found.items()}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    sizes = Sizes(parser.parse_args().quick)
    server = Server(settings={}).start()
    try:
        medians = await rounds(server, sizes)
        print(f"medians of {sizes.rounds} interleaved rounds, per second, {os.cpu_count()} cores")
        for name, rate in medians.items():
            print(f"  {rate:>12,.0f}  {name}")
        print("ratios")
        for one, other in (
            ("enqueue, bulk of 1000", "plain COPY of 1000"),
            ("drain, history none", "plain cursor"),
            ("drain, history none, old snapshot", "drain, history none"),
            (f"deliveries to {sizes.groups} groups", "drain, history none"),
        ):
            print(f"  {medians[one] / medians[other]:>12.2f}  {one} / {other}")
        times = await pickup(server, sizes.pickups)
        p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
        print(f"idle pickup, push to waiting claim on another connection: p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    finally:
        server.remove()


if __name__ == "__main__":
    asyncio.run(main())
