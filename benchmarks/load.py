"""A load of HTTP requests from a process of its own: closed loops on many connections, as cheap as can be.

`python -m benchmarks.load` reads a task as JSON from standard input and writes what it measured. The requests of a
connection are made beforehand, and of an answer only its length and status are read.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import uvloop

PUSHED_AT_ONCE = 100
WARM_UP = 10
"""Pushes that come first and are not counted."""


class Line(asyncio.Protocol):
    """One connection: sends its request, and again when the answer is complete."""

    def __init__(self, request: bytes, until: float) -> None:
        self.request = request
        self.until = until
        self.done = asyncio.get_running_loop().create_future()
        self.answers = 0
        self.bad: str | None = None
        self._buffer = b""
        self._want = -1

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._want < 0:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 : (head + b"\r\n").find(b"\r\n", at)]) if at >= 0 else 0
            self._want = end + 4 + length
            if head[9:10] != b"2":
                self.bad = self._buffer[:200].decode(errors="replace")
        if len(self._buffer) < self._want:
            return
        self._buffer, self._want = b"", -1
        self.answers += 1
        if self.bad is not None or time.perf_counter() >= self.until:
            self.transport.close()
        else:
            self.transport.write(self.request)

    def connection_lost(self, _: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


def post(path: str, body: bytes, headers: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n{headers}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def rate(task: dict[str, Any]) -> dict[str, Any]:
    """Answers per second over so many connections."""
    loop = asyncio.get_running_loop()
    request = post(task["path"], task["body"].encode())
    began = time.perf_counter()
    until = began + task["seconds"]
    lines: list[Line] = []
    for _ in range(task["connections"]):
        _, line = await loop.create_connection(lambda: Line(request, until), "127.0.0.1", task["port"])
        lines.append(line)
    for line in lines:
        await line.done
    took = time.perf_counter() - began
    bad = next((line.bad for line in lines if line.bad), None)
    return {"answers": sum(line.answers for line in lines), "seconds": took, "bad": bad}


class Waiter(asyncio.Protocol):
    """A claim that waits; says when it was answered."""

    def __init__(self, number: int, request: bytes, answered: asyncio.Queue[tuple[int, float, bytes]]) -> None:
        self.number, self.request, self.answered = number, request, answered

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"HTTP/"):  # its head; the rest may follow by itself
            self.answered.put_nowait((self.number, time.perf_counter(), data))

    def again(self) -> None:
        self.transport.write(self.request)


async def wakes(task: dict[str, Any]) -> dict[str, Any]:
    """Many wait; push one message at a time and see who is answered, how soon, and how many."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Queue[tuple[int, float, bytes]] = asyncio.Queue()
    body = json.dumps({"wait": True, "timeout_ms": 600000, "auto_settle": True}).encode()
    request = post(f"/v1/queues/{task['queue']}/claim", body)
    waiters = []
    for number in range(task["waiters"]):
        waiter = Waiter(number, request, answered)
        await loop.create_connection(partial(_given, waiter), "127.0.0.1", task["port"])
        waiters.append(waiter)
    print("waiting", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    latencies, extra = [], 0
    push = Pusher(post(f"/v1/queues/{task['queue']}/messages", b'{"payload": {"n": 1}}'))
    await loop.create_connection(lambda: push, "127.0.0.1", task["port"])
    for round_ in range(-WARM_UP, task["pushes"]):
        began = time.perf_counter()
        stored = push.push()
        number, at, data = await asyncio.wait_for(answered.get(), 10)
        assert b" 200 " in data[:20], data[:200]
        if round_ >= 0:
            latencies.append((at - began) * 1000)
        await stored
        await asyncio.sleep(task["rest"])
        extra += answered.qsize()
        waiters[number].again()
        await asyncio.sleep(0.002)
    return {"latencies": latencies, "extra": extra}


class Poll(asyncio.Protocol):
    """A claim that waits, and comes back as soon as it is answered."""

    def __init__(self, request: bytes, answered: Callable[[], None]) -> None:
        self.request, self.answered = request, answered

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"HTTP/"):  # its head; the rest may follow by itself
            assert b" 200 " in data[:20], data[:200]
            self.answered()
            self.transport.write(self.request)


async def answers(task: dict[str, Any]) -> dict[str, Any]:
    """Many poll; pushes of a hundred over many partitions follow each other as answers come. How many were answered?"""
    loop = asyncio.get_running_loop()
    claim = json.dumps({"wait": True, "timeout_ms": 600000, "auto_settle": True}).encode()
    numbers = itertools.cycle(random.Random(1).sample(range(task["partitions"]), task["partitions"]))
    waiters, answered, enough = task["waiters"], 0, asyncio.Event()

    def count() -> None:
        nonlocal answered
        answered += 1
        enough.set()

    def some() -> bytes:
        messages = [{"payload": {"n": 1}, "key": f"p{next(numbers)}"} for _ in range(PUSHED_AT_ONCE)]
        return post("/v1/queues/q/messages", json.dumps({"messages": messages}).encode())

    push = Pusher(b"")
    await loop.create_connection(lambda: push, "127.0.0.1", task["port"])
    for _ in range(0, max(task["partitions"], WARM_UP * PUSHED_AT_ONCE), PUSHED_AT_ONCE):  # every lane is there
        push.request = some()
        await push.push()
    pushed = max(task["partitions"], WARM_UP * PUSHED_AT_ONCE)
    for _ in range(waiters):
        await loop.create_connection(
            partial(_given, Poll(post("/v1/queues/q/claim", claim), count)), "127.0.0.1", task["port"]
        )
    while answered < pushed:
        enough.clear()
        await enough.wait()
    began, before = time.perf_counter(), answered
    while time.perf_counter() - began < task["seconds"]:
        while pushed - answered > waiters // 2:  # half of them are always waiting
            enough.clear()
            await enough.wait()
        push.request = some()
        await push.push()
        pushed += PUSHED_AT_ONCE
    return {"answers": answered - before, "seconds": time.perf_counter() - began}


def _given(protocol: asyncio.Protocol) -> asyncio.Protocol:
    return protocol


class Pusher(asyncio.Protocol):
    def __init__(self, request: bytes) -> None:
        self.request = request

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def push(self) -> asyncio.Future[None]:
        self.stored = asyncio.get_running_loop().create_future()
        self.transport.write(self.request)
        return self.stored

    def data_received(self, _: bytes) -> None:
        if not self.stored.done():
            self.stored.set_result(None)


if __name__ == "__main__":
    given = json.loads(sys.stdin.readline())
    print(json.dumps(uvloop.run({"rate": rate, "wakes": wakes, "answers": answers}[given["do"]](given))), flush=True)
