"""What the drivers of Python peers share.

A driver is a script with roles: `setup`, `one N`, `at_once N CALLERS`, `bulk N`, `ping N`, `work`. It finds the
database in PEER_DSN, and in PEER_KEYS over how many keys the jobs are spread (0: none). The enqueuing roles print how
many seconds they took; `work` appends a line "sent handled" (seconds of the monotonic clock) to the file PEER_OUT for
every job that it handles, until it is ended.
"""

import asyncio
import itertools
import os
import sys
import time
from collections.abc import Awaitable, Callable

DSN = os.environ["PEER_DSN"]
KEYS = int(os.environ.get("PEER_KEYS", "0"))
PAD = "x" * 150
BATCH = 1000
PING_GAP_SECONDS = 0.02

_numbers = itertools.count()
_out = None


def key() -> str | None:
    """The key of the next job."""
    return f"k{next(_numbers) % KEYS}" if KEYS else None


def now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def handled(sent: float) -> None:
    global _out  # noqa: PLW0603 - one file per process, opened at the first job
    if _out is None:
        _out = os.open(os.environ["PEER_OUT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_out, b"%.6f %.6f\n" % (sent, now()))


async def enqueue(
    one: Callable[[float], Awaitable[object]],
    many: Callable[[list[float]], Awaitable[object]],
    role: str,
    *numbers: str,
) -> None:
    """Play an enqueuing role, after one job to warm up."""
    count, *rest = map(int, numbers)
    if role == "ping":
        for _ in range(count):
            await asyncio.sleep(PING_GAP_SECONDS)
            await one(now())
        return
    await one(now())
    began = now()
    if role == "one":
        for _ in range(count):
            await one(now())
    elif role == "at_once":
        left = iter(range(count))

        async def caller() -> None:
            for _ in left:
                await one(now())

        await asyncio.gather(*(caller() for _ in range(rest[0])))
    elif role == "bulk":
        for _ in range(0, count, BATCH):
            await many([now()] * BATCH)
    else:
        sys.exit(f"unknown role: {role}")
    print(now() - began, flush=True)
