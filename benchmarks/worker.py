"""Workers beside their peers: no-op tasks per second in one process, many that sleep, and what an idle one costs.

`python -m benchmarks.worker [--quick] [--no-peers]`. Peers run on PostgreSQL, each on a database of its own, rounds
interleaved; medians of one run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import qo
from benchmarks.contenders import HERE, PEERS, Contender, Stable
from benchmarks.http import resident, serving
from benchmarks.postgres import Ground

WORKER = Contender("qo worker", "qo_worker_peer.py", setup=("outcome",))
PYTHON_PEERS = ("PgQueuer", "awa-pg", "Procrastinate")
WAITING = 900
CHILD = """
import asyncio, sys, time, uvloop, qo
worker = qo.Worker(sys.argv[1], queues="q")
done, began = 0, 0.0
@worker.task("noop")
async def noop(_):
    global done, began
    done += 1
    if done == 1: began = time.perf_counter()
    if done == int(sys.argv[2]):
        print(time.perf_counter() - began)
        worker.stop()
@worker.task("sleep")
async def sleep(_):
    await asyncio.sleep(float(sys.argv[3]))
    await noop(_)
uvloop.run(worker.run())
"""


async def stock(url: str, kind: str, count: int) -> None:
    async with qo.connect(url) as client:
        for start in range(0, count, 1000):
            await client.queue("q").push_many([qo.Message(start, kind=kind)] * min(1000, count - start))


async def taken(url: str, count: int) -> None:
    """Wait until so many are under way."""
    async with qo.connect(url) as client:
        while (await client.queue("q").depth()).leased < count:
            await asyncio.sleep(0.1)
    await asyncio.sleep(1)


def run(url: str, kind: str, count: int, seconds: float = 0.0) -> float:
    """Seconds that a worker process takes for so many tasks, from its start to its end."""
    asyncio.run(stock(url, kind, count))
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", CHILD, url, str(count), str(seconds)], check=True)
    return time.perf_counter() - began


def rate(url: str, count: int) -> float:
    """No-op tasks per second, from the first one's start to the last one's end, as the worker process saw them."""
    asyncio.run(stock(url, "noop", count))
    done = subprocess.run([sys.executable, "-c", CHILD, url, str(count), "0"], check=True, stdout=subprocess.PIPE)
    return per_second(count - 1, float(done.stdout))


def per_second(count: int, seconds: float) -> float:
    """A rate that was measured; an error, if nothing was."""
    if count < 1 or not seconds > 0:
        raise SystemExit(f"nothing was measured: {count} tasks in {seconds:g} s")
    return count / seconds


def idle(url: str, seconds: float) -> tuple[float, float]:
    """The share of a core that an idle worker uses; and KiB of memory for each of many tasks that wait."""
    process = subprocess.Popen([sys.executable, "-c", CHILD, url, "100000000", "600"])
    try:
        time.sleep(3)
        before, memory = _cpu(process.pid), resident(process.pid)
        time.sleep(seconds)
        share = (_cpu(process.pid) - before) / seconds
        asyncio.run(stock(url, "sleep", WAITING))
        asyncio.run(taken(url, WAITING))
        return share, (resident(process.pid) - memory) / WAITING / 1024
    finally:
        process.kill()
        process.wait()


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def print_ratios(rates: dict[str, float]) -> None:
    """Ours on PostgreSQL to the fastest Python peer's, and to graphile-worker's."""
    own = rates["qo worker on PostgreSQL"]
    for names, reach in ((PYTHON_PEERS, 2.0), (("graphile-worker",), 1.0)):
        peers = {name: rates[f"{name} on PostgreSQL"] for name in names if f"{name} on PostgreSQL" in rates}
        if peers:
            fastest = max(peers, key=peers.__getitem__)
            print(f"{own / peers[fastest]:12.2f}  qo worker / {fastest}  (reach: {reach:g})")


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("--quick", action="store_true", help="one short round of each")
    command.add_argument("--no-peers", action="store_true", help="qo alone")
    given = command.parse_args()
    rounds, count = (1, 5000) if given.quick else (3, 20_000)
    stable = Stable(HERE.parent / "build" / "peers")
    stable.prepare(peers=not given.no_peers)
    contenders = (WORKER,) if given.no_peers else (WORKER, *PEERS)
    found: dict[str, list[float]] = {}
    ground = Ground()
    with tempfile.TemporaryDirectory() as folder:
        try:
            for _ in range(rounds):
                for each in contenders:
                    with ground.race(stable, each) as (race, _):
                        found.setdefault(f"{each.name} on PostgreSQL", []).append(race.drain(count))
                file = f"sqlite:///{folder}/{secrets.token_hex(4)}.db"
                found.setdefault("qo worker on SQLite", []).append(rate(file, count))
                with serving(f"sqlite:///{folder}/{secrets.token_hex(4)}.db") as (port, _):
                    found.setdefault("qo worker over HTTP (SQLite)", []).append(rate(f"http://127.0.0.1:{port}", count))
            print(f"no-op tasks per second in one process, medians of {rounds} rounds; history: outcome (the default)")
            for name, rates in found.items():
                print(f"{statistics.median(rates):12,.0f}  {name}")
            print_ratios({name: statistics.median(rates) for name, rates in found.items()})
            for name, url in (
                ("SQLite", f"sqlite:///{folder}/sleep.db"),
                ("PostgreSQL", f"{ground.dsn('postgres')}?schema=qo_sleep"),
            ):
                took = run(url, "sleep", 10_000, 1.0)
                print(f"{took:12.1f}  seconds for 10,000 tasks that sleep 1 s, 1000 slots, {name}  (reach: 13)")
                share, memory = idle(f"{url}".replace("sleep", "idle"), 5 if given.quick else 20)
                print(f"{share:12.2%}  of a core, an idle worker on {name}  (reach: 0.2 %)")
                print(f"{memory:12.1f}  KiB of memory per task that waits, {name}  (reach: 10)")
        finally:
            ground.server.remove()


if __name__ == "__main__":
    main()
