"""Queen's published client against qo: pushing, consuming, draining many partitions, and being woken.

`python -m benchmarks.queen [--quick]`. The client is one Python process of its own, and so is the server; medians of
several rounds, interleaved by store.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from tests.postgres import Server as Database

from benchmarks.http import serving

BATCHES = (1, 10, 100)
PARTITIONS = 5000
PAYLOAD = {"customer": 7, "cents": 1200, "note": "x" * 220}


async def push(queen: Any, size: int, seconds: float) -> float:
    """Messages per second, eight pushes at a time."""
    queue = queen.queue(secrets.token_hex(4))
    began, pushed = time.perf_counter(), 0

    async def producer() -> None:
        nonlocal pushed
        while time.perf_counter() - began < seconds:
            await queue.push([{"data": PAYLOAD}] * size)
            pushed += size

    await asyncio.gather(*(producer() for _ in range(8)))
    return pushed / (time.perf_counter() - began)


async def consume(queen: Any, size: int, count: int) -> float:
    """Messages per second that four consumers take, handle and acknowledge."""
    name = secrets.token_hex(4)
    for start in range(0, count, 500):
        items = [{"data": number} for number in range(start, min(start + 500, count))]
        await queen.queue(name).partition(str(start // 500 % 8)).push(items)
    stop, seen = asyncio.Event(), 0

    async def handle(messages: Any) -> None:
        nonlocal seen
        seen += len(messages) if isinstance(messages, list) else 1
        if seen >= count:
            stop.set()

    began = time.perf_counter()
    consuming = queen.queue(name).concurrency(4).batch(size).timeout_millis(500)
    task = asyncio.ensure_future(_awaited(consuming.consume(handle, signal=stop)))
    await stop.wait()
    took = time.perf_counter() - began
    await task
    return count / took


async def _awaited(builder: Any) -> Any:
    return await builder


async def drain(queen: Any) -> float:
    """Seconds to drain many partitions with one message each, ten consumers at once."""
    name = secrets.token_hex(4)
    for start in range(0, PARTITIONS, 500):
        pushes = [
            queen.queue(name).partition(f"p{number}").push([{"data": number}]) for number in range(start, start + 500)
        ]
        await asyncio.gather(*(_awaited(each) for each in pushes))
    stop, seen = asyncio.Event(), set[int]()

    async def handle(messages: Any) -> None:
        seen.update(each["data"] for each in (messages if isinstance(messages, list) else [messages]))
        if len(seen) == PARTITIONS:
            stop.set()

    began = time.perf_counter()
    consuming = queen.queue(name).concurrency(10).timeout_millis(500)
    task = asyncio.ensure_future(_awaited(consuming.consume(handle, signal=stop)))
    await stop.wait()
    took = time.perf_counter() - began
    await task
    return took


async def wakes(queen: Any, count: int) -> list[float]:
    """Milliseconds from a push to the answer of a pop that waits."""
    name, found = secrets.token_hex(4), []
    await queen.queue(name).push([{"data": 0}])
    await queen.ack(await queen.queue(name).batch(1).pop())
    for number in range(count):
        waiting = asyncio.create_task(queen.queue(name).batch(1).pop())
        await asyncio.sleep(0.02)
        began = time.perf_counter()
        pushing = asyncio.create_task(_awaited(queen.queue(name).push([{"data": number}])))
        messages = await waiting
        found.append((time.perf_counter() - began) * 1000)
        await pushing
        await queen.ack(messages)
    return found


async def measure(port: int, what: str, size: int, amount: float) -> Any:
    from queen import Queen  # noqa: PLC0415 - in the client's process only

    async with Queen(url=f"http://127.0.0.1:{port}") as queen:
        work: dict[str, Callable[[], Any]] = {
            "push": lambda: push(queen, size, amount),
            "consume": lambda: consume(queen, size, int(amount)),
            "drain": lambda: drain(queen),
            "wakes": lambda: wakes(queen, int(amount)),
        }
        return await work[what]()


def client(port: int, what: str, size: int = 0, amount: float = 0) -> Any:
    task = json.dumps({"port": port, "what": what, "size": size, "amount": amount})
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.queen", "--client", task], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("--quick", action="store_true", help="one short round of each")
    command.add_argument("--client", help=argparse.SUPPRESS)
    given = command.parse_args()
    if given.client is not None:
        with contextlib.redirect_stdout(io.StringIO()):  # the client says what it does
            found = asyncio.run(measure(**json.loads(given.client)))
        print(json.dumps(found))
        return
    rounds, seconds, count, pushes = (1, 2.0, 2000, 50) if given.quick else (3, 5.0, 10_000, 300)
    with tempfile.TemporaryDirectory() as folder:
        database = Database(settings={}).start()
        new = {
            "sqlite": lambda: f"sqlite:///{folder}/{secrets.token_hex(4)}.db",
            "postgresql": lambda: f"{database.url}&schema=qo_{secrets.token_hex(4)}",
        }
        figures: dict[tuple[str, str], list[float]] = {}
        latencies: dict[str, list[float]] = {store: [] for store in new}
        try:
            for _ in range(rounds):
                for store, url in new.items():
                    with serving(url()) as (port, _):
                        for size in BATCHES:
                            figures.setdefault((store, f"push, batches of {size}, messages/s"), []).append(
                                client(port, "push", size, seconds)
                            )
                            total = count if size > 1 else count // 5
                            figures.setdefault((store, f"consume, batches of {size}, messages/s"), []).append(
                                client(port, "consume", size, total)
                            )
                        figures.setdefault((store, "drain of 5000 partitions, seconds (reach: 5)"), []).append(
                            client(port, "drain")
                        )
                        latencies[store] += client(port, "wakes", 0, pushes)
        finally:
            database.remove()
    print(f"queen-mq 2.6.0 against qo, medians of {rounds} rounds; history: outcome (the default)")
    for (store, name), values in sorted(figures.items()):
        print(f"{statistics.median(values):12,.1f}  {store}: {name}")
    for store, values in latencies.items():
        values.sort()
        print(
            f"{store}: push to answer of a waiting pop, through the client: p50 {values[len(values) // 2]:.2f} ms "
            f"(reach: 10), p99 {values[int(len(values) * 0.99)]:.2f} ms"
        )


if __name__ == "__main__":
    main()
