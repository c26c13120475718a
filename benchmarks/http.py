"""The server beside its limits: the same server answering a constant, and the store alone.

`python -m benchmarks.http [--quick]`. Rounds are interleaved and the medians of one run are printed, with ratios. The
load comes from a process of its own; the server and the constant are two more, of which one works at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.postgres import Server as Database

from qo.client.outgoing import Message
from qo.client.queue import Queue
from qo.connect import connect

CONNECTIONS = 64
BATCHES = (1, 10, 100)
PAYLOAD = {"customer": 7, "cents": 1200, "note": "x" * 220}

CONSTANT = """
import sys, uvloop, uvicorn
from qo.server.serve import bind, uvicorn_config
from qo.server.settings import ServerSettings
BODY = b'{"answer":"stored","id":"01a1e599-6a2f-7f4f-805a-7f3ecc4391af"}'
async def app(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": BODY})
listening = bind("127.0.0.1", 0)
print(listening.getsockname()[1], flush=True)
uvloop.run(uvicorn.Server(uvicorn_config(app, ServerSettings(store=""))).serve([listening]))
"""


@contextlib.contextmanager
def constant() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", CONSTANT], stdout=subprocess.PIPE, text=True)
    try:
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def serving(store: str) -> Iterator[tuple[int, int]]:
    """A server's port and process id."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "qo.cli.main", "serve", "--store", store, "--port", "0"], stderr=log
        )
        try:
            yield _port(log), process.pid
        finally:
            process.terminate()
            process.wait()


def _port(log: Any) -> int:
    while True:
        log.seek(0)
        text = log.read()
        if "listening on" in text:
            port = int(text.split("listening on http://127.0.0.1:")[1].split(",")[0])
            with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{port}/livez", timeout=5) as answer:
                answer.read()
                return port
        time.sleep(0.05)


def load(**task: Any) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.load"],
        input=json.dumps(task) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.get("bad") is None, found["bad"]
    return found


def pushes_per_second(port: int, size: int, seconds: float) -> float:
    """Requests per second that push a batch of this size."""
    one = {"payload": PAYLOAD}
    body = json.dumps(one if size == 1 else {"messages": [one] * size})
    queue = secrets.token_hex(4)
    found = load(do="rate", port=port, path=f"/v1/queues/{queue}/messages", body=body, seconds=seconds,
                 connections=CONNECTIONS if size == 1 else 16)  # fmt: skip
    return found["answers"] / found["seconds"]


def claims_per_second(port: int, size: int, seconds: float, stocked: int) -> float:
    """Requests per second that claim a batch of this size, settled at delivery, from a stocked queue."""
    queue = secrets.token_hex(4)
    body = json.dumps({"messages": 1000 * [{"payload": PAYLOAD}]})
    load(do="rate", port=port, path=f"/v1/queues/{queue}/messages", body=body, seconds=stocked / 25_000, connections=4)
    terms = {"messages": size, "auto_settle": True, "wait": True, "timeout_ms": 1000}
    found = load(
        do="rate",
        port=port,
        path=f"/v1/queues/{queue}/claim",
        seconds=seconds,
        connections=CONNECTIONS if size == 1 else 16,
        body=json.dumps(terms),
    )
    with urlopen(f"http://127.0.0.1:{port}/v1/queues/{queue}/depth", timeout=30) as answer:
        assert json.load(answer)["ready"] > 0, "the queue ran dry: stock more"
    return found["answers"] / found["seconds"]


async def store_alone(url: str, size: int, seconds: float) -> float:
    """Messages per second that the store takes from its own process, as many calls at once as the server has."""
    async with connect(url) as client:
        queue: Queue = client.queue(secrets.token_hex(4))
        messages = [Message(PAYLOAD)] * size
        began, pushed = time.perf_counter(), 0

        async def push() -> None:
            nonlocal pushed
            while time.perf_counter() - began < seconds:
                await queue.push_many(messages)
                pushed += size

        await asyncio.gather(*(push() for _ in range(CONNECTIONS if size == 1 else 16)))
        return pushed / (time.perf_counter() - began)


def rounds(store: str, count: int, seconds: float, *, new_store: Any) -> None:
    """Push and claim, beside the constant and the store alone."""
    pushed: dict[int, list[float]] = {size: [] for size in BATCHES}
    claimed: dict[int, list[float]] = {size: [] for size in BATCHES}
    alone: dict[int, list[float]] = {size: [] for size in BATCHES}
    limit: list[float] = []
    with constant() as limit_port:
        for _ in range(count):
            url = new_store()
            body = json.dumps({"payload": PAYLOAD})
            found = load(do="rate", port=limit_port, path="/", body=body, seconds=seconds, connections=CONNECTIONS)
            limit.append(found["answers"] / found["seconds"])
            with serving(url) as (port, _):
                for size in BATCHES:
                    pushed[size].append(pushes_per_second(port, size, seconds) * size)
                for size in BATCHES:
                    claimed[size].append(claims_per_second(port, size, seconds, 30_000 * seconds) * size)
            url = new_store()
            for size in BATCHES:
                alone[size].append(asyncio.run(store_alone(url, size, seconds)))
    top = statistics.median(limit)
    print(f"\n{store}: medians of {count} interleaved rounds, messages per second; history: outcome (the default)")
    print(f"{top:12,.0f}  the same server answering a constant, {CONNECTIONS} connections")
    for size in BATCHES:
        push, own = statistics.median(pushed[size]), statistics.median(alone[size])
        print(f"{push:12,.0f}  push, batches of {size}")
        print(f"{own:12,.0f}  the store alone, batches of {size}")
        print(f"{statistics.median(claimed[size]):12,.0f}  claim settled at delivery, batches of {size}")
    one, hundred = statistics.median(pushed[1]), statistics.median(pushed[100])
    least = min(50_000, 0.6 * statistics.median(alone[100]))
    print(f"{one / top:12.2f}  push of 1 / the constant  (reach on SQLite: 0.40)")
    print(f"{hundred / least:12.2f}  push of 100 / the lesser of 50,000 and 0.6 of the store alone  (reach: 1)")


def wake(store: str, url: str, waiters: int, pushes: int) -> None:
    """Latency from a push to the answer of one of many waiters; and what a waiter costs."""
    with serving(url) as (port, process):
        before = resident(process)
        task = {
            "do": "wakes",
            "port": port,
            "queue": secrets.token_hex(4),
            "waiters": waiters,
            "pushes": pushes,
            "rest": 0.02,
        }
        client = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        client.stdin.write(json.dumps(task) + "\n")
        client.stdin.flush()
        assert client.stdout.readline() == "waiting\n"
        while waiting(port) < waiters:
            time.sleep(0.1)
        each = (resident(process) - before) / waiters
        client.stdin.write("go\n")
        client.stdin.flush()
        found = json.loads(client.stdout.readline())
        client.wait()
    latencies = sorted(found["latencies"])
    print(
        f"{store}, {waiters:,} waiters: push to answer p50 {latencies[len(latencies) // 2]:.2f} ms, "
        f"p99 {latencies[int(len(latencies) * 0.99)]:.2f} ms; {each / 1024:.1f} KiB of memory per waiter; "
        f"{found['extra']} woken beyond the one per push"
    )


def resident(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def waiting(port: int) -> int:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return int(json.load(answer)["qo_http_waiters"]["samples"][0]["value"])


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("--quick", action="store_true", help="one short round of each")
    command.add_argument("--only", nargs="*", default=["rates", "wakes"], choices=["rates", "wakes"])
    command.add_argument("--stores", nargs="*", default=["sqlite", "postgresql"], choices=["sqlite", "postgresql"])
    given = command.parse_args()
    count, seconds, pushes = (1, 2.0, 100) if given.quick else (5, 5.0, 500)
    with tempfile.TemporaryDirectory() as folder:
        database = Database(settings={}).start() if "postgresql" in given.stores else None
        new = {
            "sqlite": lambda: f"sqlite:///{folder}/{secrets.token_hex(4)}.db",
            "postgresql": lambda: f"{database.url}&schema=qo_{secrets.token_hex(4)}",
        }
        try:
            for store in given.stores:
                if "rates" in given.only:
                    rounds(store, count, seconds, new_store=new[store])
                if "wakes" in given.only:
                    for waiters in (1000, 10_000):
                        wake(store, new[store](), waiters, pushes)
        finally:
            if database is not None:
                database.remove()


if __name__ == "__main__":
    main()
