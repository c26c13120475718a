"""qo embedded on SQLite, beside plain inserts (the limit) and Huey's SQLite storage (the peer), in one run.

Every case runs in interleaved rounds and the median is printed, so that noise
falls on all alike. All write with synchronous=FULL in WAL mode. qo keeps history at
its default (`outcome`). Usage: python -m benchmarks.embedded [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

import huey as huey_package

import qo

PAYLOAD = {"customer": 12345, "text": "x" * 150}
PAYLOAD_TEXT = '{"customer":12345,"text":"' + "x" * 150 + '"}'


class Sizes:
    def __init__(self, quick: bool) -> None:
        self.rounds = 3 if quick else 7
        self.singles = 100 if quick else 500
        self.batched = 5_000 if quick else 40_000
        self.end_to_end = 2_000 if quick else 20_000
        self.peer_end_to_end = 200 if quick else 1_000
        self.backlog = 20_000 if quick else 1_000_000
        self.small_backlog = 1_000
        self.idle_lanes = 2_000 if quick else 100_000
        self.claims = 30 if quick else 200
        self.pickups = 30 if quick else 200


def url(folder: str) -> str:
    return f"sqlite:///{Path(folder, f'{uuid.uuid4()}.db')}"


def plain_insert(folder: str, count: int, batch: int) -> float:
    """The limit: the same payload and no more than a queue table needs, through the standard library."""
    connection = sqlite3.connect(Path(folder, f"{uuid.uuid4()}.db"), isolation_level=None)
    connection.execute("PRAGMA journal_mode = wal")
    connection.execute("PRAGMA synchronous = full")
    connection.execute(
        "CREATE TABLE plain (id INTEGER PRIMARY KEY, queue TEXT, kind TEXT, payload TEXT, created_at INTEGER)"
    )
    began = time.perf_counter()
    for _ in range(0, count, batch):
        rows = [("q", "k", PAYLOAD_TEXT, time.time_ns()) for _ in range(batch)]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO plain (queue, kind, payload, created_at) VALUES (?, ?, ?, ?)", rows)
        connection.execute("COMMIT")
    rate = count / (time.perf_counter() - began)
    connection.close()
    return rate


async def qo_push(folder: str, count: int, batch: int) -> float:
    async with qo.connect(url(folder)) as client:
        queue = client.queue("q")
        await queue.push(PAYLOAD)
        began = time.perf_counter()
        for _ in range(0, count, batch):
            await queue.push_many([qo.Message(PAYLOAD) for _ in range(batch)])
        return count / (time.perf_counter() - began)


async def qo_end_to_end(folder: str, count: int, batch: int) -> float:
    """Push, claim and complete, in batches."""
    async with qo.connect(url(folder)) as client:
        queue = client.queue("q")
        began = time.perf_counter()
        for _ in range(0, count, batch):
            await queue.push_many([qo.Message(PAYLOAD) for _ in range(batch)])
            await queue.complete_many(await queue.claim(batch))
        return count / (time.perf_counter() - began)


def peer(folder: str) -> tuple[huey_package.SqliteHuey, Callable[[dict], object]]:
    app = huey_package.SqliteHuey("q", filename=str(Path(folder, f"{uuid.uuid4()}.db")), results=False, fsync=True)

    @app.task()
    def nothing(payload):
        pass

    return app, nothing


def huey_push(folder: str, count: int) -> float:
    app, task = peer(folder)
    began = time.perf_counter()
    for _ in range(count):
        task(PAYLOAD)
    rate = count / (time.perf_counter() - began)
    app.storage.close()
    return rate


def huey_end_to_end(folder: str, count: int) -> float:
    """Enqueue, dequeue and execute, as its consumer does, without its threads."""
    app, task = peer(folder)
    began = time.perf_counter()
    for _ in range(count):
        task(PAYLOAD)
        app.execute(app.dequeue())
    rate = count / (time.perf_counter() - began)
    app.storage.close()
    return rate


async def pickup(folder: str, count: int) -> list[float]:
    """From push to the waiting claim's answer, in milliseconds, in one process."""
    times = []
    async with qo.connect(url(folder)) as client:
        queue = client.queue("q")
        for _ in range(count):
            waiting = asyncio.create_task(queue.claim(1, wait=10))
            await asyncio.sleep(0.005)
            began = time.perf_counter()
            await queue.push(PAYLOAD)
            [delivery] = await waiting
            times.append((time.perf_counter() - began) * 1000)
            await delivery.complete()
    return times


async def fill(queue: qo.Queue, backlog: int, idle_lanes: int) -> None:
    for start in range(0, idle_lanes, 10_000):
        count = min(10_000, idle_lanes - start)
        await queue.push_many([qo.Message(1, key=f"idle-{start + number}") for number in range(count)])
        taken = await queue.claim(count, lane_messages=1)
        await queue.complete_many(taken)
    for start in range(0, backlog, 10_000):
        await queue.push_many([qo.Message(PAYLOAD)] * min(10_000, backlog - start))


async def claim_cost(queue: qo.Queue, claims: int) -> float:
    """Median milliseconds of a claim of 10, with as many pushed and settled in between."""
    times = []
    for _ in range(claims):
        await queue.push_many([qo.Message(PAYLOAD)] * 10)
        began = time.perf_counter()
        taken = await queue.claim(10)
        times.append((time.perf_counter() - began) * 1000)
        await queue.complete_many(taken)
    return statistics.median(times)


async def backlog_cost(folder: str, sizes: Sizes) -> tuple[float, float]:
    """A claim with a thousand waiting, and with a million waiting beside a hundred thousand idle lanes; interleaved."""
    async with qo.connect(url(folder)) as small, qo.connect(url(folder)) as large:
        few, many = small.queue("q"), large.queue("q")
        await fill(few, sizes.small_backlog, 0)
        await fill(many, sizes.backlog, sizes.idle_lanes)
        pairs = [
            (await claim_cost(few, sizes.claims // 4), await claim_cost(many, sizes.claims // 4))
            for _ in range(sizes.rounds)
        ]
    return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)


async def rounds(sizes: Sizes, folder: str) -> dict[str, float]:
    found: defaultdict[str, list[float]] = defaultdict(list)

    async def note(name: str, case: float | Awaitable[float]) -> None:
        found[name].append(case if isinstance(case, float) else await case)

    for _ in range(sizes.rounds):
        for batch in (1, 100, 1000):
            count = sizes.singles if batch == 1 else sizes.batched
            await note(f"plain insert, batches of {batch}", plain_insert(folder, count, batch))
            await note(f"qo push, batches of {batch}", qo_push(folder, count, batch))
        await note("huey enqueue, one by one", huey_push(folder, sizes.singles))
        await note("qo end to end, batches of 100", qo_end_to_end(folder, sizes.end_to_end, 100))
        await note("qo end to end, one by one", qo_end_to_end(folder, sizes.singles, 1))
        await note("huey end to end", huey_end_to_end(folder, sizes.peer_end_to_end))
    return {name: statistics.median(rates) for name, rates in found.items()}


def report(medians: dict[str, float], sizes: Sizes) -> None:
    print(f"medians of {sizes.rounds} interleaved rounds, per second; history: outcome (the default)")
    for name, rate in medians.items():
        print(f"  {rate:>12,.0f}  {name}")
    print("ratios")
    for batch in (1, 100, 1000):
        ratio = medians[f"qo push, batches of {batch}"] / medians[f"plain insert, batches of {batch}"]
        print(
            f"  {ratio:>12.2f}  qo push / plain insert, batches of {batch}" + ("  (reach: 0.50)" if batch > 1 else "")
        )
    huey_rate = medians["huey end to end"]
    print(f"  {medians['qo end to end, batches of 100'] / huey_rate:>12.1f}  qo end to end of 100 / huey  (reach: 10)")
    print(f"  {medians['qo end to end, one by one'] / huey_rate:>12.1f}  qo end to end one by one / huey")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    sizes = Sizes(parser.parse_args().quick)
    with tempfile.TemporaryDirectory(prefix="qo-bench-") as folder:
        report(await rounds(sizes, folder), sizes)
        times = sorted(await pickup(folder, sizes.pickups))
        print(
            "pickup, push to waiting claim: "
            f"p50 {times[len(times) // 2]:.2f} ms, p99 {times[int(len(times) * 0.99)]:.2f} ms"
        )
        few, many = await backlog_cost(folder, sizes)
        print(f"a claim of 10 with {sizes.small_backlog:,} waiting: {few:.3f} ms")
        print(f"a claim of 10 with {sizes.backlog:,} waiting and {sizes.idle_lanes:,} idle lanes: {many:.3f} ms")
        print(f"  {many / few:>12.2f}  ratio  (reach: < 1.3)")


if __name__ == "__main__":
    asyncio.run(main())
