"""Order per key beside no order: pushes, drains, workers, long polls, and peers that keep order per key.

`python -m benchmarks.keyed [--quick] [--only PART …]`. Every round measures everything once, in turns; medians of one
run and their ratios are printed. History: outcome (the default).
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks.contenders import HERE, PEERS, Contender, Stable
from benchmarks.http import load, serving
from benchmarks.postgres import Ground
from benchmarks.worker import WORKER

PARTS = ("rates", "sorts", "workers", "polls")
STORES = ("SQLite", "PostgreSQL")
KEYS = (0, 50, 1000, 10_000)
BATCHES = (1, 100, 1000, 10_000)
PARTITIONS = (10, 1000, 10_000)
WAITERS = 1000
ORDERED_PEERS = ("graphile-worker", "pg-boss", "Procrastinate")

COMMON = """
import asyncio, json, sys, time, uvloop, qo
from qo.core.lease import Complete
url, keys, batch, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
sort = sys.argv[5] if len(sys.argv) > 5 else "plain"
pad = {"customer": 12345, "text": "x" * 150}
found = {}

def message(n):
    return qo.Message(pad, **({"key": f"k{n % keys}"} if keys else {}), **extra(n))

def extra(n):
    match sort:
        case "delayed": return {"delay": 3600}
        case "dedupe": return {"dedupe": f"d{n}"}
        case "ttl": return {"ttl": 3600}
    return {}

async def pushed(queue):
    messages = [message(n) for n in range(count)]
    began = time.perf_counter()
    for start in range(0, count, batch):
        await queue.push_many(messages[start : start + batch])
    return count / (time.perf_counter() - began)

async def drained(queue):
    report = Complete(b'{"done":true}') if sort == "results" else Complete()
    began, done = time.perf_counter(), 0
    while done < count:
        taken = await queue.claim(batch)
        await queue.broker.settle([delivery.settlement(report) for delivery in taken])
        for delivery in taken:
            delivery.note_settled()
        done += len(taken)
    return count / (time.perf_counter() - began)

async def main():
    async with qo.connect(url) as client:
        warm = client.queue("warm")
        await warm.push_many([qo.Message(pad, **({"key": f"w{n % 10}"} if keys else {})) for n in range(100)])
        await warm.complete_many(await warm.claim(100))
        queue = client.queue("q")
        found["push"] = await pushed(queue)
        if sort in ("plain", "results"):
            found["drain"] = await drained(queue)
    print(json.dumps(found))

uvloop.run(main())
"""

Found = defaultdict[tuple[object, ...], list[float]]


class Field:
    """Where stores come from."""

    def __init__(self, ground: Ground, folder: str) -> None:
        self.ground = ground
        self.folder = folder

    def new(self, store: str) -> str:
        if store == "SQLite":
            return f"sqlite:///{self.folder}/{secrets.token_hex(4)}.db"
        return self.ground.schema()

    def measure(self, store: str, keys: int, batch: int, count: int, sort: str = "plain") -> dict[str, float]:
        words = [self.new(store), *map(str, (keys, batch, count)), sort]
        done = subprocess.run([sys.executable, "-c", COMMON, *words], check=True, stdout=subprocess.PIPE)
        return dict(json.loads(done.stdout))


def medians(found: Found) -> dict[tuple[object, ...], float]:
    return {name: statistics.median(values) for name, values in found.items()}


def rates(field: Field, rounds: int, total: int) -> None:
    """Pushed and drained per second, by keys and batch."""
    found: Found = defaultdict(list)
    for _ in range(rounds):
        for store in STORES:
            for batch in BATCHES:
                for keys in KEYS:
                    count = max(min(total, batch * 500), batch)
                    for role, rate in field.measure(store, keys, batch, count).items():
                        found[store, role, batch, keys].append(rate)
    by = medians(found)
    for store in STORES:
        for role in ("push", "drain"):
            print(f"{store}, {role}: messages per second, and the ratio to open lanes; medians of {rounds} rounds")
            print("      batches of" + "".join(f"{'open' if not keys else f'{keys:,} keys':>21}" for keys in KEYS))
            for batch in BATCHES:
                row = [by[store, role, batch, keys] for keys in KEYS]
                print(f"{batch:16,}" + "".join(f"{rate:13,.0f} ({rate / row[0]:.2f})" for rate in row), flush=True)
            flat = [by[store, role, 10_000, keys] / by[store, role, 1000, keys] for keys in KEYS]
            print(f"{'10,000 / 1000':>16}" + "".join(f"{ratio:20.2f} " for ratio in flat) + " (reach: 1)", flush=True)


def sorts(field: Field, rounds: int, total: int) -> None:
    """What is not plain, beside what is."""
    found: Found = defaultdict(list)
    names = ("plain", "delayed", "dedupe", "ttl", "results")
    for _ in range(rounds):
        for store in STORES:
            for batch in (1000, 10_000):
                for sort in names:
                    for role, rate in field.measure(store, 0, batch, total, sort).items():
                        found[store, role, batch, sort].append(rate)
    by = medians(found)
    for store in STORES:
        print(f"{store}: pushed per second in batches of 1000, of 10,000; their ratio, and of the first to plain")
        for sort in names[:4]:
            small, large = by[store, "push", 1000, sort], by[store, "push", 10_000, sort]
            ratio = small / by[store, "push", 1000, "plain"]
            print(f"{small:12,.0f} {large:12,.0f} {large / small:8.2f} {ratio:8.2f}  {sort}  (reach: 1, 0.3)")
        told, silent = by[store, "drain", 1000, "results"], by[store, "drain", 1000, "plain"]
        print(f"{told:12,.0f} {silent:12,.0f} {told / silent:17.2f}  drained with results, without  (reach: 0.7)")


def workers(field: Field, stable: Stable, rounds: int, count: int, *, peers: bool) -> None:
    """Jobs per second that one worker process handles, with 1000 keys and without."""
    found: Found = defaultdict(list)
    contenders = [WORKER, *(peer for peer in PEERS if peers and peer.name in ORDERED_PEERS)]
    for _ in range(rounds):
        for contender in contenders:
            for keys in (0, 1000):
                each = contender._replace(keys=keys, jobs=_share(contender, keys))
                with field.ground.race(stable, each) as (race, _):
                    found[contender.name, keys].append(race.drain(count))
    by = medians(found)
    print(f"jobs per second of one worker process on PostgreSQL: 1000 keys, none, ratio; medians of {rounds} rounds")
    for contender in contenders:
        keyed, free = by[contender.name, 1000], by[contender.name, 0]
        print(f"{keyed:12,.0f} {free:12,.0f} {keyed / free:8.2f}  {contender.name}", flush=True)
    others = [by[contender.name, 1000] for contender in contenders[1:]]
    if others:
        print(f"{by[WORKER.name, 1000] / max(others):12.2f}  qo worker / the fastest peer, 1000 keys  (reach: 5)")


def _share(contender: Contender, keys: int) -> float:
    """Peers that keep order per key are slow at it: fewer jobs, so that the run ends."""
    return contender.jobs if not keys or contender.name == WORKER.name else min(contender.jobs, 0.1)


def polls(field: Field, rounds: int, seconds: float) -> None:
    """Answers per second to a thousand long polls, each of which comes back at once, over so many partitions."""
    found: Found = defaultdict(list)
    for _ in range(rounds):
        for store in STORES:
            for partitions in PARTITIONS:
                with serving(field.new(store)) as (port, _):
                    task = {"port": port, "waiters": WAITERS, "partitions": partitions, "seconds": seconds}
                    answer = load(do="answers", **task)
                found[store, partitions].append(answer["answers"] / answer["seconds"])
    by = medians(found)
    for store in STORES:
        print(f"{store}: answers per second to {WAITERS:,} long polls; medians of {rounds} rounds  (reach: 2000, flat)")
        for partitions in PARTITIONS:
            rate = by[store, partitions]
            print(f"{rate:12,.0f} ({rate / by[store, PARTITIONS[0]]:.2f})  {partitions:,} partitions", flush=True)


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("--quick", action="store_true", help="one short round of each")
    command.add_argument("--no-peers", action="store_true", help="qo alone")
    command.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    given = command.parse_args()
    rounds, total, seconds = (1, 10_000, 3.0) if given.quick else (5, 20_000, 6.0)
    ground = Ground()
    try:
        with tempfile.TemporaryDirectory() as folder:
            field = Field(ground, folder)
            if "rates" in given.only:
                rates(field, rounds, total)
            if "sorts" in given.only:
                sorts(field, rounds, total)
            if "workers" in given.only:
                stable = Stable(Path(HERE.parent, "build", "peers"))
                stable.prepare(peers=not given.no_peers)
                workers(field, stable, rounds, total, peers=not given.no_peers)
            if "polls" in given.only:
                polls(field, rounds, seconds)
    finally:
        ground.server.remove()


if __name__ == "__main__":
    main()
