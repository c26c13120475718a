"""`qo demo`: a few thousand jobs with failures and retries, on an embedded store, in view."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

from qo.client.client import Client
from qo.client.delivery import Delivery
from qo.client.outgoing import Message
from qo.client.queue import Queue
from qo.connect import connect
from qo.core.retry import RetryPolicy

QUEUE = "demo"
KEYS = 50
FAIL_ONCE, FAIL_ALWAYS = 10, 500
"""Every tenth job fails at its first attempt, every five-hundredth at all of them."""


def add_to(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="run a few thousand jobs with failures and retries",
        description="Push jobs into an embedded SQLite store, handle them concurrently, let some fail and be retried, "
        "and show the sums. Uses a temporary file unless one is named.",
    )
    command.add_argument("--jobs", type=_positive, default=3000, help="how many (default 3000)")
    command.add_argument("--store", help="a store URL to use and keep; default a temporary file")
    command.set_defaults(run=lambda given: asyncio.run(_demo(given.jobs, given.store)))


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not '{text}'")
    return int(text)


async def _demo(jobs: int, store: str | None) -> int:
    with tempfile.TemporaryDirectory(prefix="qo-demo-") as folder:
        logging.getLogger("qo.client").setLevel(logging.ERROR)  # what fails here is meant to
        url = store or f"sqlite:///{Path(folder, 'demo.db')}"
        print(f"store: {url}")
        async with connect(url) as client:
            return await _run(client, jobs)


async def _run(client: Client, jobs: int) -> int:
    queue = client.queue(QUEUE)
    await queue.configure(retry=RetryPolicy(attempts=3, delay=timedelta(milliseconds=200)))
    began = time.perf_counter()
    handles = await queue.push_many(
        Message({"number": number}, kind="work", key=f"customer-{number % KEYS}" if number % 3 == 0 else None)
        for number in range(jobs)
    )
    pushed = time.perf_counter()
    print(f"pushed {len(handles)} jobs in {pushed - began:.2f} s ({len(handles) / (pushed - began):,.0f}/s)")
    seen: Counter[str] = Counter()
    view = asyncio.create_task(_show(queue, jobs, seen, sys.stdout))
    await queue.consume(_handler(seen), batch=100, concurrency=200, idle=2)
    view.cancel()
    await asyncio.gather(view, return_exceptions=True)
    return await _summarize(queue, jobs, seen, time.perf_counter() - pushed - 2)


def _handler(seen: Counter[str]) -> Callable[[Delivery], Any]:
    async def handle(delivery: Delivery) -> dict[str, int]:
        number = delivery.payload["number"]
        seen["attempts"] += 1
        if number % FAIL_ALWAYS == FAIL_ALWAYS - 1:
            raise RuntimeError("this one always fails")
        if number % FAIL_ONCE == 0 and delivery.attempt == 1:
            seen["failed once"] += 1
            raise RuntimeError("this one fails once")
        seen["done"] += 1
        return {"square": number * number}

    return handle


async def _show(queue: Queue, jobs: int, seen: Counter[str], out: TextIO) -> None:
    """A line that is written over on a terminal; now and then a new one elsewhere."""
    live = out.isatty()
    while True:
        await asyncio.sleep(0.1 if live else 1)
        depth = await queue.depth()
        line = (
            f"{seen['done']:>6}/{jobs} done  {depth.ready:>6} ready  {depth.leased:>4} leased  "
            f"{depth.retrying:>4} retrying  {depth.dead:>3} dead"
        )
        print(line, end="\r" if live else "\n", file=out, flush=True)


async def _summarize(queue: Queue, jobs: int, seen: Counter[str], seconds: float) -> int:
    depth = await queue.depth()
    print(f"handled in {seconds:.2f} s ({seen['attempts'] / seconds:,.0f} attempts/s)" + " " * 30)
    print(f"  done        {seen['done']}")
    print(f"  failed once {seen['failed once']}, then done at the second attempt")
    print(f"  dead        {depth.dead}")
    for letter in await queue.dead.list(limit=3):
        print(f"    {letter.id} after {letter.attempts} attempts: {letter.error}")
    left = depth.ready + depth.retrying + depth.leased + depth.delayed
    balanced = left == 0 and seen["done"] + depth.dead >= jobs
    print("every job is accounted for" if balanced else f"{left} jobs are left")
    return 0 if balanced else 1
