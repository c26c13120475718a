"""Many schedules: how late they fire when they are all due in one second, and what they cost while none is.

`python -m benchmarks.schedules [--quick] [--stored N]`. Every round stores the schedules anew, of which some are due at
once; lateness is from the slot to the moment at which its job was stored, by the store's clock. Medians of one run.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import statistics
import tempfile
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from benchmarks.postgres import Ground
from qo.broker.broker import LocalBroker
from qo.client.client import Client
from qo.core.firing import new_schedule
from qo.core.lease import Unit
from qo.core.record import Put
from qo.core.schedule import RECORD_KIND, Plan, Target
from qo.core.slots import Spec
from qo.stores.opening import open_engine

STORES = ("SQLite", "PostgreSQL")
DUE = (1000, 10_000)
AHEAD = timedelta(seconds=4)
"""From the moment at which the last schedule is stored to the slot."""
LOOKS = 200
IDLE_SECONDS = 5.0


async def store_schedules(engine: Any, first: int, count: int, at: datetime) -> None:
    now = engine.store_now()
    plan = Plan(target=Target(queue="ticks", payload=b'{"report":"sales"}'), specs=(Spec(at=at),))
    for start in range(first, first + count, 1000):
        puts = []
        for number in range(start, min(start + 1000, first + count)):
            schedule = new_schedule(f"schedule-{number:06}", secrets.token_hex(8), plan, now)
            body = msgspec.json.encode(schedule)
            puts.append(Put(kind=RECORD_KIND, name=schedule.name, body=body, due_at=schedule.due_at))
        await engine.transact([Unit(records=tuple(puts))])


async def lateness(url: str, stored: int, due: int) -> dict[str, float]:
    """Seconds from the slot until half, nearly all, and all of what is due had become jobs."""
    engine = await open_engine(url)
    await store_schedules(engine, due, stored - due, datetime.now(UTC) + timedelta(days=300))
    at = engine.store_now() + AHEAD + timedelta(seconds=due / 5000)
    await store_schedules(engine, 0, due, at)
    broker = LocalBroker(engine)
    late: list[float] = []
    async with Client(broker) as client:
        queue = client.queue("ticks")
        while len(late) < due:
            taken = await queue.claim(1000, wait=10)
            late += [(each.created_at - at).total_seconds() for each in taken]
            await queue.complete_many(taken)
    late.sort()
    return {"p50": late[len(late) // 2], "p99": late[int(len(late) * 0.99)], "all": late[-1]}


async def looking(url: str, stored: int) -> float:
    """Microseconds that it takes to find that nothing is due."""
    engine = await open_engine(url)
    await store_schedules(engine, 0, stored, datetime.now(UTC) + timedelta(days=300))
    await engine.due_records(RECORD_KIND, 1000)
    began = time.perf_counter()
    for _ in range(LOOKS):
        await engine.due_records(RECORD_KIND, 1000)
    spent = (time.perf_counter() - began) / LOOKS * 1e6
    await engine.close()
    return spent


async def idle(url: str, stored: int) -> int:
    """How often a process asks for what is due while nothing is, in some seconds."""
    engine: Any = await open_engine(url)
    await store_schedules(engine, 0, stored, datetime.now(UTC) + timedelta(days=300))
    asked, ask = 0, engine.due_records

    async def counted(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return await ask(*arguments)

    engine.due_records = counted
    broker = LocalBroker(engine)
    await asyncio.sleep(1)
    before = asked
    await asyncio.sleep(IDLE_SECONDS)
    await broker.close()
    return asked - before


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("--quick", action="store_true", help="one round, and fewer schedules")
    command.add_argument("--stored", type=int, default=100_000, help="how many schedules there are (default 100,000)")
    given = command.parse_args()
    rounds, stored = (1, 12_000) if given.quick else (5, given.stored)
    ground = Ground()
    found: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    try:
        with tempfile.TemporaryDirectory() as folder:

            def new(store: str) -> str:
                return f"sqlite:///{folder}/{secrets.token_hex(4)}.db" if store == "SQLite" else ground.schema()

            for _ in range(rounds):
                for store in STORES:
                    for due in DUE:
                        for name, seconds in asyncio.run(lateness(new(store), stored, due)).items():
                            found[store, due, name].append(seconds)
                    for count in (1000, stored):
                        found[store, "look", count].append(asyncio.run(looking(new(store), count)))
            asked = {store: asyncio.run(idle(new(store), 1000)) for store in STORES}
    finally:
        ground.server.remove()
    by = {name: statistics.median(values) for name, values in found.items()}
    print(f"{stored:,} schedules stored; medians of {rounds} rounds")
    for store in STORES:
        for due in DUE:
            p50, p99, last = (by[store, due, name] for name in ("p50", "p99", "all"))
            print(
                f"{store}: {due:,} due in one second: late by {p50:.2f} s (p50), {p99:.2f} s (p99); all fired after "
                f"{last:.2f} s, {due / last:,.0f} a second  (reach: 10,000 within 5 s)"
            )
        few, many = by[store, "look", 1000], by[store, "look", stored]
        print(f"{store}: finding what is due: {few:.0f} µs with 1,000 stored, {many:.0f} µs with {stored:,}")
        print(f"{store}: asked {asked[store]} times in {IDLE_SECONDS:g} s with nothing due")


if __name__ == "__main__":
    main()
