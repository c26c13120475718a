"""Group commit: while one call to the store is under way, further ones gather and go out together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Generic, TypeVar

from qo.core.errors import Closed, Unavailable

Q = TypeVar("Q")
A = TypeVar("A")


STALL_SECONDS = 2.0
"""A batch that is under way for longer than this does not hold back the next batch."""
AT_ONCE_LIMIT = 4
"""Batches that may be under way at once, all but the newest stalled."""


class Batcher(Generic[Q, A]):
    """Sends calls in batches, one batch at a time, as long as none stalls.

    A call that is cancelled before its batch is sent is dropped. After that it
    may take effect, and `abandoned` is told of its answer. If a batch is
    refused, its calls are sent one by one, so that a bad one fails alone.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Q]], Awaitable[Sequence[A]]],
        *,
        weigh: Callable[[Q], int],
        limit: int,
        abandoned: Callable[[Q, A], None] | None = None,
    ) -> None:
        self._send = send
        self._weigh = weigh
        self._limit = limit
        self._abandoned = abandoned
        self._waiting: deque[tuple[Q, asyncio.Future[A]]] = deque()
        self._pumps: set[asyncio.Task[None]] = set()
        self._under_way = 0
        self._generation = 0
        self._stall: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    async def ask(self, call: Q) -> A:
        if self._closed:
            raise Closed("this client was closed")
        if self._under_way == 0 and self._abandoned is None:
            return await self._ask_directly(call)
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, answer))
        if self._under_way == 0:
            self._start()
        elif self._stall is None:
            self._stall = asyncio.get_running_loop().call_later(STALL_SECONDS, self._stalled)
        try:
            return await answer
        except asyncio.CancelledError:
            if self._abandoned is not None and is_answered(answer):
                self._abandoned(call, answer.result())
            raise

    async def close(self) -> None:
        """Refuse new calls and finish those that were made."""
        self._closed = True
        await self._idle.wait()
        while self._pumps:
            await asyncio.wait(self._pumps)

    async def _ask_directly(self, call: Q) -> A:
        """Send one call without the pump, when no other call waits. Calls that gather meanwhile are sent afterwards."""
        self._begin()
        try:
            [answer] = await self._send([call])
        finally:
            self._end()
            if self._waiting and self._under_way == 0:
                self._start()
        return answer

    def _begin(self) -> None:
        self._under_way += 1
        self._idle.clear()

    def _end(self) -> None:
        self._under_way -= 1
        if self._under_way == 0:
            self._idle.set()
            if self._stall is not None:
                self._stall.cancel()
                self._stall = None

    def _stalled(self) -> None:
        """The batch under way takes long: send the calls that have gathered without waiting for it."""
        self._stall = None
        if not self._waiting or self._under_way == 0:
            return
        if self._under_way < AT_ONCE_LIMIT:
            self._start()
        self._stall = asyncio.get_running_loop().call_later(STALL_SECONDS, self._stalled)

    def _start(self) -> None:
        self._begin()
        self._generation += 1
        pump = asyncio.create_task(self._run(self._generation))
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)

    async def _run(self, generation: int) -> None:
        try:
            # A stalled pump leaves the remaining calls to the pump that replaced it.
            while (generation == self._generation or self._under_way == 1) and (batch := self._next_batch()):
                await self._send_batch(batch)
        finally:
            self._end()

    def _next_batch(self) -> list[tuple[Q, asyncio.Future[A]]]:
        batch: list[tuple[Q, asyncio.Future[A]]] = []
        weight = 0
        while self._waiting and (not batch or weight + self._weigh(self._waiting[0][0]) <= self._limit):
            call, answer = self._waiting.popleft()
            if not answer.done():
                batch.append((call, answer))
                weight += self._weigh(call)
        return batch

    async def _send_batch(self, batch: list[tuple[Q, asyncio.Future[A]]]) -> None:
        try:
            answers = await self._send([call for call, _ in batch])
        except Exception as error:  # noqa: BLE001 - it belongs to the callers, who are told below
            await self._refused(batch, error)
            return
        for (call, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
            elif self._abandoned is not None:
                self._abandoned(call, answer)

    async def _refused(self, batch: list[tuple[Q, asyncio.Future[A]]], error: Exception) -> None:
        if len(batch) > 1 and not isinstance(error, Unavailable):
            for each in batch:
                await self._send_batch([each])
            return
        for _, future in batch:
            if not future.done():
                future.set_exception(error)


def parts_of(items: Sequence[Q], weigh: Callable[[Q], int], limit: int) -> Iterator[Sequence[Q]]:
    """Items in parts, in their order, each as much as fits; a single one may be more."""
    start = weight = 0
    for number, item in enumerate(items):
        own = weigh(item)
        if number > start and weight + own > limit:
            yield items[start:number]
            start, weight = number, 0
        weight += own
    if start < len(items):
        yield items[start:]


def is_answered(answer: asyncio.Future[A]) -> bool:
    """Whether the call has a result. If its caller is cancelled at this moment, nobody else handles that result."""
    return answer.done() and not answer.cancelled() and answer.exception() is None


def dealt_out(answers: Sequence[A], sizes: Sequence[int]) -> list[Sequence[A]]:
    """Give each call its share of a batch's answers."""
    shares = []
    start = 0
    for size in sizes:
        shares.append(answers[start : start + size])
        start += size
    return shares
