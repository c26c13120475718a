"""qo on PostgreSQL, beside its peers and the plain limits, in one run.

Every contender plays the same roles in processes of its own, on an empty database of its own, in interleaved
rounds; medians are printed. The server is the newest of the test servers, on loopback, with its default durability
(fsync and synchronous_commit on). Usage: python -m benchmarks.postgres [--quick] [--no-peers] [--only PART …]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import re
import socket
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import asyncpg
from tests.postgres import Server

import qo
from benchmarks.contenders import PEERS, QO, QO_WITHOUT_HISTORY, Contender, Race, Stable, median_and_p99
from benchmarks.plain import plain_copy, plain_cursor, plain_pickups

PAYLOAD = {"customer": 12345, "text": "x" * 150}
STABLE = Path("build/peers")
AT_ONCE = 16
BATCH = 100
GROUPS = 10
WINDOWS = 5
PARTS = ("peers", "costs", "snapshot", "growth", "groups")


class Sizes:
    def __init__(self, quick: bool) -> None:
        self.rounds = 1 if quick else 3
        self.one = 50 if quick else 500
        self.at_once = 400 if quick else 4_000
        self.bulk = 5_000 if quick else 30_000
        self.drain = 5_000 if quick else 40_000
        self.pickups = 20 if quick else 200
        self.costs = 1_000 if quick else 5_000
        self.snapshot_seconds = 3 if quick else 120
        self.stored = (10_000, 50_000) if quick else (10_000, 5_000_000)
        self.window = 5_000 if quick else 20_000
        self.groups = 2_000 if quick else 10_000


class Ground:
    """The server, and databases on it."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        settings = {"listen_addresses": "127.0.0.1", "port": str(self.port), "log_line_prefix": "%d "}
        self.server = Server(settings=settings).start()
        self._numbers = itertools.count(1)

    def database(self) -> str:
        name = f"bench_{next(self._numbers)}"
        self.ask("postgres", f"CREATE DATABASE {name}")
        return name

    def dsn(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def schema(self) -> str:
        """The URL of an installation of qo of its own."""
        return f"{self.dsn('postgres')}?schema=bench_{next(self._numbers)}"

    def ask(self, database: str, sql: str) -> str:
        return asyncio.run(_ask(self.dsn(database), sql))

    @contextmanager
    def race(self, stable: Stable, contender: Contender) -> Iterator[tuple[Race, str]]:
        database = self.database()
        race = Race(stable, contender, self.dsn(database))
        try:
            yield race, database
        finally:
            race.close()
            self.ask("postgres", f"DROP DATABASE {database} WITH (FORCE)")


async def _ask(dsn: str, sql: str) -> str:
    connection = await asyncpg.connect(dsn)
    try:
        return str(await connection.fetchval(sql))
    finally:
        await connection.close()


@contextmanager
def old_snapshot(ground: Ground, database: str) -> Iterator[None]:
    """A transaction that looks at the database once and stays open, as a long report does."""
    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(asyncpg.connect(ground.dsn(database)))
    loop.run_until_complete(connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class"))
    try:
        yield
    finally:
        connection.terminate()
        loop.close()


Found = defaultdict[str, defaultdict[str, list[float]]]
"""Measures by role and contender."""


def rounds(ground: Ground, stable: Stable, contenders: list[Contender], sizes: Sizes) -> tuple[Found, Found]:
    found: Found = defaultdict(lambda: defaultdict(list))
    times: Found = defaultdict(lambda: defaultdict(list))
    for number in range(sizes.rounds):
        for contender in contenders:
            print(f"  round {number + 1} of {sizes.rounds}: {contender.name}", flush=True)
            with ground.race(stable, contender) as (race, _):
                found["one by one"][contender.name].append(race.rate("one", sizes.one))
                found[f"{AT_ONCE} at once"][contender.name].append(race.rate("at_once", sizes.at_once, str(AT_ONCE)))
            with ground.race(stable, contender) as (race, _):
                found["bulk"][contender.name].append(race.rate("bulk", sizes.bulk))
            with ground.race(stable, contender) as (race, _):
                found["drain"][contender.name].append(race.drain(sizes.drain))
            with ground.race(stable, contender) as (race, database), old_snapshot(ground, database):
                found["drain, old snapshot"][contender.name].append(race.drain(sizes.drain))
            with ground.race(stable, contender) as (race, _):
                times["pickup"][contender.name] += race.pickups(sizes.pickups)
        database = ground.database()
        found["bulk"]["plain COPY"].append(asyncio.run(plain_copy(ground.dsn(database), sizes.bulk)))
        found["drain"]["plain cursor"].append(asyncio.run(plain_cursor(ground.dsn(database), sizes.drain)))
        times["pickup"]["plain NOTIFY and UPDATE"] += asyncio.run(plain_pickups(ground.dsn(database), sizes.pickups))
    return found, times


def show_rounds(found: Found, times: Found, sizes: Sizes) -> dict[str, dict[str, float]]:
    medians = {role: {name: statistics.median(rates) for name, rates in by.items()} for role, by in found.items()}
    print(f"jobs per second, medians of {sizes.rounds} interleaved rounds, {os.cpu_count()} cores")
    for role, by in medians.items():
        print(f"  {role}")
        for name, rate in sorted(by.items(), key=lambda each: -each[1]):
            print(f"    {rate:>10,.0f}  {name}")
    print("  idle pickup, from before the enqueue to the start of the job, ms: p50, p99")
    for name, all_times in times["pickup"].items():
        p50, p99 = median_and_p99(sorted(all_times))
        print(f"    {p50:>10.2f} {p99:>8.2f}  {name}")
    return medians


def show_ratios(medians: dict[str, dict[str, float]], times: Found) -> None:
    names = {each.name for each in PEERS}
    print("ratios")
    for role, own, reach in (
        ("bulk", QO, 2.0),
        (f"{AT_ONCE} at once", QO, 3.0),
        ("drain", QO_WITHOUT_HISTORY, 2.5),
        ("drain", QO, 1.5),
    ):
        rate, name = max(
            ((rate, name) for name, rate in medians[role].items() if name in names), default=(0.0, "no peer")
        )
        if rate:
            print(f"    {medians[role][own.name] / rate:>10.2f}  {role}: {own.name} / {name}  (reach: {reach:g})")
    print(f"    {medians['bulk'][QO.name] / medians['bulk']['plain COPY']:>10.2f}  bulk: qo / plain COPY")
    p50, _ = median_and_p99(sorted(times["pickup"][QO.name]))
    print(f"    {p50:>10.2f}  ms, idle pickup p50: qo  (reach: 3)")


def costs(ground: Ground, stable: Stable, contenders: list[Contender], sizes: Sizes) -> None:
    """What a drained job costs the server, medians of rounds: a checkpoint in between makes one dearer.

    Statements are those that are sent; a function's own are not counted.
    """
    print("costs per job drained: statements sent, WAL bytes of enqueue and drain, row versions made dead")
    for contender in contenders:
        found = [_cost(ground, stable, contender, sizes.costs) for _ in range(sizes.rounds)]
        said, wal, dead = (statistics.median(each) for each in zip(*found, strict=True))
        print(f"    {said:>8.3f} {wal:>10,.0f} {dead:>8.2f}  {contender.name}", flush=True)


def _cost(ground: Ground, stable: Stable, contender: Contender, count: int) -> tuple[float, float, float]:
    jobs = max(int(count * max(contender.jobs, 0.2)) // 1000, 1) * 1000
    with ground.race(stable, contender) as (race, database):
        before = int(ground.ask(database, "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"))
        ground.ask("postgres", f"ALTER DATABASE {database} SET log_statement = 'all'")
        race.drain(int(jobs / contender.jobs))
        time.sleep(1)
        wal = int(ground.ask(database, "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")) - before
        dead = int(ground.ask(database, "SELECT sum(n_tup_upd + n_tup_del) FROM pg_stat_user_tables"))
        said = re.findall(rf"^{database} LOG:  (?:statement|execute)", ground.server.log.read_text(), re.MULTILINE)
        return len(said) / jobs, wal / jobs, dead / jobs


def snapshot(ground: Ground, stable: Stable, sizes: Sizes) -> None:
    """Pushing and handling at full speed, without and with an old snapshot that is held all the time."""
    print(f"handled per second in the last quarter of {sizes.snapshot_seconds} s under load")
    rates = []
    for held in (False, True):
        with ground.race(stable, QO_WITHOUT_HISTORY) as (race, database), ExitStack() as stack:
            if held:
                stack.enter_context(old_snapshot(ground, database))
            rates.append(_under_load(race, sizes.snapshot_seconds))
        print(f"    {rates[-1]:>10,.0f}  {'with an old snapshot' if held else 'without'}", flush=True)
    print(f"    {rates[1] / rates[0]:>10.2f}  with an old snapshot / without  (reach: 0.7)")


def _under_load(race: Race, seconds: float) -> float:
    began = time.monotonic()
    with race.worker():
        while time.monotonic() < began + seconds:
            race.play("bulk", "50000")
        ended = time.monotonic()
        found = [at for _, at in race.handled() if began + seconds * 0.75 <= at <= ended]
    return len(found) / (ended - began - seconds * 0.75)


async def growth(ground: Ground, sizes: Sizes) -> None:
    """Rates with few and with many messages stored: medians of some windows."""
    print("messages per second with so many stored: pushed in thousands, claimed and completed in hundreds")
    rates = []
    async with qo.connect(ground.schema()) as client:
        queue = client.queue("q")
        await queue.configure(history="none", retain=86400)
        stored = 0
        for goal in sizes.stored:
            while stored < goal:
                await queue.push_many([qo.Message(PAYLOAD) for _ in range(1000)])
                stored += 1000
            await _rest(ground.dsn("postgres"))
            windows = []
            for _ in range(WINDOWS):
                windows.append((await _push_window(queue, sizes.window), await _drain_window(queue, sizes.window)))
                stored += sizes.window
            pushed, drained = (statistics.median(each) for each in zip(*windows, strict=True))
            rates.append((pushed, drained))
            print(f"    {pushed:>10,.0f} {drained:>10,.0f}  with {goal:,} stored", flush=True)
    ratios = [last / first for first, last in zip(*rates, strict=True)]
    print(f"    {ratios[0]:>10.2f} {ratios[1]:>10.2f}  last / first  (reach: 0.8)")


async def _rest(dsn: str) -> None:
    """Have done what the server would do in the background after a load, so that the size alone makes a difference."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("VACUUM")
    await connection.execute("CHECKPOINT")
    await connection.close()


async def _push_window(queue: qo.Queue, count: int) -> float:
    began = time.perf_counter()
    for _ in range(0, count, 1000):
        await queue.push_many([qo.Message(PAYLOAD) for _ in range(1000)])
    return count / (time.perf_counter() - began)


async def _drain_window(queue: qo.Queue, count: int) -> float:
    began = time.perf_counter()
    batch: list[qo.Delivery] = []
    for _ in range(0, count, BATCH):
        _, batch = await queue.complete_and_claim(batch, BATCH)
    await queue.complete_many(batch)
    return count / (time.perf_counter() - began)


async def groups(ground: Ground, sizes: Sizes) -> None:
    """One consumer per group, which takes a batch when it has completed the last."""
    print(f"deliveries per second, one consumer per group: one group, {GROUPS} groups, ratio")
    for batch in (1, 10, 100):
        rates: dict[int, list[float]] = {1: [], GROUPS: []}
        for _ in range(sizes.rounds):
            for count, found in rates.items():
                share = max(sizes.groups * batch // 100, 100)
                found.append(await _with_groups(ground, count, share, batch))
        one, ten = (statistics.median(each) for each in rates.values())
        print(f"    {one:>10,.0f} {ten:>10,.0f} {ten / one:>8.2f}  batches of {batch}  (reach: 5)", flush=True)


async def _with_groups(ground: Ground, count: int, messages: int, batch: int) -> float:
    async with qo.connect(ground.schema()) as client:
        queue = client.queue("q")
        await queue.configure(history="none")
        queues = [queue, *(queue.group(f"g{number}") for number in range(count - 1))]
        for each in queues[1:]:
            await each.register()
        for _ in range(0, messages, 100):
            await queue.push_many([qo.Message(PAYLOAD) for _ in range(100)])

        async def consume(own: qo.Queue) -> int:
            done, held = 0, await own.claim(batch)
            while held:
                done += len(held)
                _, held = await own.complete_and_claim(held, batch)
            return done

        began = time.perf_counter()
        done = sum(await asyncio.gather(*map(consume, queues)))
        return done / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--no-peers", action="store_true", help="qo and the plain limits alone")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="some parts alone")
    options = parser.parse_args()
    sizes = Sizes(options.quick)
    stable = Stable(STABLE)
    stable.prepare(peers=not options.no_peers)
    contenders = [QO, QO_WITHOUT_HISTORY, *(() if options.no_peers else PEERS)]
    ground = Ground()
    try:
        if "peers" in options.only:
            found, times = rounds(ground, stable, contenders, sizes)
            show_ratios(show_rounds(found, times, sizes), times)
        if "costs" in options.only:
            costs(ground, stable, contenders, sizes)
        if "groups" in options.only:
            asyncio.run(groups(ground, sizes))
        if "growth" in options.only:
            asyncio.run(growth(ground, sizes))
        if "snapshot" in options.only:
            snapshot(ground, stable, sizes)
    finally:
        ground.server.remove()


if __name__ == "__main__":
    main()
