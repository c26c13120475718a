"""consume: a loop that claims, hands over and settles."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from qo.client.delivery import Delivery, describe
from qo.client.payload import result_bytes
from qo.core.errors import LeaseLost, NotFound, QoError
from qo.core.lease import Claimed, Complete, Extension, Fail, LeaseToken, Lost, Place, Release, Report
from qo.core.queue import QueueSettings

if TYPE_CHECKING:
    from qo.client.queue import Queue

log = logging.getLogger("qo.client")

Handler = Callable[[Delivery], Awaitable[Any]]

BATCH = 10
CONCURRENCY = 10
EXTEND_AFTER = 3
"""Leases are extended when a third of them is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    batch: int
    lease: timedelta | None
    kinds: frozenset[str] | None
    idle: timedelta | None


async def iterate(queue: Queue, terms: Terms) -> AsyncIterator[Delivery]:
    """Yield deliveries as they come. Leaving the loop releases what was not yielded."""
    fetched: list[Delivery] = []
    try:
        while fetched := await _claim(queue, terms, terms.batch):
            fetched.reverse()
            while fetched:
                yield fetched.pop()
    finally:
        if fetched:
            await queue.front.settle([delivery.settlement(Release()) for delivery in fetched])


async def _claim(queue: Queue, terms: Terms, messages: int, lane_messages: int | None = None) -> list[Delivery]:
    want = queue.want(messages=messages, lease=terms.lease, kinds=terms.kinds, lane_messages=lane_messages)
    until = None if terms.idle is None else queue.front.now() + terms.idle
    answer = await queue.front.claim_or_wait(want, until)
    return [Delivery(queue.front, each) for each in answer.deliveries] if isinstance(answer, Claimed) else []


async def run(queue: Queue, handler: Handler, concurrency: int, terms: Terms) -> int:
    """Handle messages, up to `concurrency` at once, until none came for `idle`. How many were handled."""
    return await Consumer(queue, handler, concurrency, terms).run()


class Consumer:
    """Claims one message per keyed lane at a time, so that a key's messages run in order, and only what it can run."""

    def __init__(self, queue: Queue, handler: Handler, concurrency: int, terms: Terms) -> None:
        self._queue = queue
        self._handler = handler
        self._terms = terms
        self._concurrency = concurrency
        self._running: dict[asyncio.Task[None], Delivery] = {}
        self._freed = asyncio.Event()
        self._handled = 0
        self._lease = timedelta(0)
        self._main: asyncio.Task[Any] | None = None
        self._broken: BaseException | None = None

    async def run(self) -> int:
        self._main = asyncio.current_task()
        self._lease = self._terms.lease or await self._queue_lease()
        keeper = asyncio.create_task(self._keep_leases())
        try:
            await self._take_and_start()
        except BaseException:
            await self._abandon()
            if self._broken is not None:
                raise self._broken from None
            raise
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        return self._handled

    async def _take_and_start(self) -> None:
        while True:
            while len(self._running) >= self._concurrency:
                await self._one_ended()
            free = min(self._concurrency - len(self._running), self._terms.batch)
            deliveries = await _claim(self._queue, self._terms, free, lane_messages=1)
            for delivery in deliveries:
                self._start(delivery)
            if not deliveries and not self._running:
                return
            if not deliveries:
                await self._one_ended()  # what comes after it in its lane is next

    async def _one_ended(self) -> None:
        self._freed.clear()
        await self._freed.wait()

    async def _queue_lease(self) -> timedelta:
        """The queue's setting; of a queue that does not exist yet, the default."""
        try:
            return (await self._queue.settings()).lease
        except NotFound:
            return QueueSettings().lease

    def _start(self, delivery: Delivery) -> None:
        task = asyncio.create_task(self._handle(delivery))
        self._running[task] = delivery
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        self._freed.set()

    async def _handle(self, delivery: Delivery) -> None:
        report = await self._report(delivery)
        if delivery.settled:
            self._handled += 1
            return
        try:
            await delivery.settle(report)
        except LeaseLost:
            log.warning("the lease of message %s ran out while it was handled; it will run again", delivery.id)
        except QoError:
            log.warning("could not settle message %s; its lease will run out", delivery.id, exc_info=True)
        self._handled += not isinstance(report, Release)

    async def _report(self, delivery: Delivery) -> Report:
        """Run the handler. What it raises is the message's failure, not ours; but what ends a program ends us."""
        try:
            return Complete(result_bytes(await self._handler(delivery)))
        except asyncio.CancelledError:
            return Release()
        except Exception as error:
            log.warning("message %s failed at attempt %d", delivery.id, delivery.attempt, exc_info=True)
            return Fail(describe(error))
        except BaseException as error:  # noqa: BLE001 - raised again by `run`, once everything was given back
            self._broken = error
            if self._main is not None:
                self._main.cancel()
            return Release()

    async def _abandon(self) -> None:
        """The caller stops us: what runs is cancelled, and what was not settled is given back with no attempt used."""
        held = list(self._running.values())
        for task in list(self._running):
            task.cancel()
        while self._running:
            await asyncio.gather(*self._running, return_exceptions=True)
        unsettled = [delivery for delivery in held if not delivery.settled]
        if unsettled:
            await self._queue.front.settle([delivery.settlement(Release()) for delivery in unsettled])

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(self._lease.total_seconds() / EXTEND_AFTER)
            try:
                await self._extend_all()
            except QoError:
                log.warning("could not extend leases", exc_info=True)

    async def _extend_all(self) -> None:
        """One call for all leases; what was lost or canceled is cancelled here."""
        held: dict[LeaseToken, list[tuple[asyncio.Task[None], Place]]] = {}
        for task, delivery in self._running.items():
            each = delivery.delivered
            held.setdefault(each.token, []).append((task, Place(each.lane, each.offset)))
        if not held:
            return
        extensions = [
            Extension(token=token, lease=self._lease, started=tuple(place for _, place in tasks))
            for token, tasks in held.items()
        ]
        answers = await self._queue.front.extend(extensions)
        for answer, tasks in zip(answers, held.values(), strict=True):
            for task, place in tasks:
                if isinstance(answer, Lost) or place in answer.canceled:
                    task.cancel()
