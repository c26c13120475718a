"""consume: a loop that claims, hands over and settles."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from qo.client.delivery import Delivery
from qo.client.holding import Holder
from qo.client.payload import result_bytes
from qo.client.steps import BATCH, Options
from qo.client.traces import describe
from qo.core.backoff import LoopBackoff
from qo.core.errors import Closed, NotFound, QoError, Unavailable
from qo.core.held import At, at, released
from qo.core.lease import (
    Answer,
    Claimed,
    Complete,
    Fail,
    Nothing,
    Release,
    Report,
    Want,
)
from qo.core.queue import QueueSettings

if TYPE_CHECKING:
    from qo.client.queue import Queue
    from qo.core.verbs import Broker

log = logging.getLogger("qo.client")

Handler = Callable[[Any], Awaitable[Any]]
"""Takes a delivery, or a list of them where `each` is off."""


async def iterate(queue: Queue, options: Options) -> AsyncIterator[Delivery]:
    """Yield deliveries as they come. Leaving the loop releases what was not yielded."""
    fetched: list[Delivery] = []
    left = options.limit
    try:
        while left is None or left > 0:
            fetched = await _claim(queue, options, _at_most(options.batch or BATCH, left))
            if not fetched:
                return
            left = None if left is None else left - len(fetched)
            fetched.reverse()
            while fetched:
                yield fetched.pop()
    finally:
        if fetched:
            await queue.broker.settle(released([each.delivered for each in fetched]))


def _at_most(messages: int, left: int | None) -> int:
    return messages if left is None else min(messages, left)


async def _claim(queue: Queue, options: Options, messages: int, lane_messages: int | None = None) -> list[Delivery]:
    """The next deliveries; none if no message came for `idle`, or the broker was closed.

    A store that is away for a while does not end a consumer: it asks again, until `idle` is over.
    """
    broker = queue.broker
    over = None if options.idle is None else broker.now() + options.idle
    backoff = LoopBackoff()
    while True:
        want = queue.want(messages=messages, lane_messages=lane_messages)
        try:
            answer, ended = await _asked(broker, want, options, over)
        except Closed:
            raise
        except Unavailable as error:
            if over is not None and broker.now() >= over:
                raise
            rest = backoff.failed()
            log.warning("could not claim: %s; trying again in %.1f s", error, rest)
            await asyncio.sleep(rest)
            continue
        backoff.succeeded()
        if isinstance(answer, Claimed):
            return [Delivery(broker, each) for each in answer.deliveries]
        if ended or (over is not None and broker.now() >= over):
            return []
        if options.polling is not None:
            await asyncio.sleep(options.polling.total_seconds())


async def _asked(broker: Broker, want: Want, options: Options, over: datetime | None) -> tuple[Claimed | Nothing, bool]:
    """A claim's answer, and whether it is the last: an empty one before its time means that the broker was closed."""
    if options.polling is not None:
        return await broker.claim(want), False
    until = _earlier(over, None if options.timeout is None else broker.now() + options.timeout)
    answer = await broker.claim_or_wait(want, until)
    return answer, until is None or broker.now() < until


def _earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    return min((each for each in (one, other) if each is not None), default=None)


async def run(queue: Queue, handler: Handler, options: Options) -> int:
    """Handle messages, up to `concurrency` at once, until none came for `idle`. How many were handled."""
    return await Consumer(queue, handler, options).run()


class Consumer:
    """Claims one message per keyed lane at a time, so that a key's messages run in order, and only what it can run.

    Where handlers take lists, a claim's messages go to one of them together, a key's in order.
    """

    def __init__(self, queue: Queue, handler: Handler, options: Options) -> None:
        self._queue = queue
        self._handler = handler
        self._options = options
        self._batch = options.batch or BATCH
        self._running: dict[asyncio.Task[None], list[Delivery]] = {}
        self._freed = asyncio.Event()
        self._handled = 0
        self._taken = 0
        self._tasks: dict[At, asyncio.Task[None]] = {}
        self._main: asyncio.Task[Any] | None = None
        self._broken: BaseException | None = None

    async def run(self) -> int:
        self._main = asyncio.current_task()
        self._holder = Holder(self._queue.broker, self._options.lease or await self._queue_lease(), self._cancel)
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
        while (room := self._room()) or self._running:
            if not room:
                await self._one_ended()
                continue
            deliveries = await _claim(self._queue, self._options, room, 1 if self._options.each else None)
            self._taken += len(deliveries)
            if self._options.each:
                for delivery in deliveries:
                    self._start([delivery])
            elif deliveries:
                self._start(deliveries)
            if not deliveries and not self._running:
                return
            if not deliveries:
                await self._one_ended()  # what comes after it in its lane is next

    def _room(self) -> int:
        """How many messages may be taken now."""
        free = self._options.concurrency - len(self._running)
        wanted = min(free, self._batch) if self._options.each else self._batch * (free > 0)
        left = None if self._options.limit is None else self._options.limit - self._taken
        return max(0, _at_most(wanted, left))

    async def _one_ended(self) -> None:
        self._freed.clear()
        await self._freed.wait()

    async def _queue_lease(self) -> timedelta:
        """The queue's setting; of a queue that does not exist yet, the default."""
        try:
            return (await self._queue.settings()).lease
        except NotFound:
            return QueueSettings().lease

    def _start(self, deliveries: list[Delivery]) -> None:
        task = asyncio.create_task(self._handle(deliveries))
        self._running[task] = deliveries
        self._holder.held.take([each.delivered for each in deliveries])
        self._tasks.update((at(each.delivered), task) for each in deliveries)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        for each in self._running.pop(task, ()):
            self._holder.held.drop(at(each.delivered))
            self._tasks.pop(at(each.delivered), None)
        self._freed.set()

    async def _keep_leases(self) -> None:
        every = self._options.renew
        if every is None or every:
            await self._holder.keep(None if every is None else every.total_seconds())

    async def _handle(self, deliveries: list[Delivery]) -> None:
        report = await self._report(deliveries)
        unsettled = [delivery for delivery in deliveries if not delivery.settled]
        if report is not None and unsettled:
            await self._settle(unsettled, report)
        self._handled += 0 if isinstance(report, Release) and unsettled else len(deliveries)

    async def _settle(self, deliveries: list[Delivery], report: Report) -> None:
        """Settle the messages of a handler that has ended, even if the consumer is stopped meanwhile."""
        saying = asyncio.ensure_future(self._say(deliveries, report))
        while not saying.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(saying)

    async def _say(self, deliveries: list[Delivery], report: Report) -> None:
        try:
            answers, _ = await self._holder.settle([each.settlement(report) for each in deliveries])
        except QoError:
            log.warning("could not settle message %s; its lease will run out", deliveries[0].id, exc_info=True)
            return
        for delivery, answer in zip(deliveries, answers, strict=True):
            delivery.note_settled()
            if answer.verdict is None and answer.answer is not Answer.GIVEN_BACK:
                log.warning("the lease of message %s ran out while it was handled; it will run again", delivery.id)

    async def _report(self, deliveries: list[Delivery]) -> Report | None:
        """Run the handler. What it raises is the message's failure, not ours; but what ends a program ends us."""
        given: Any = deliveries[0] if self._options.each else deliveries
        try:
            result = await self._handler(given)
            if not self._options.auto_ack:
                return None
            return Complete(result_bytes(result) if self._options.each else None)
        except asyncio.CancelledError:
            return Release()
        except Exception as error:
            unheard = self._options.on_error is None
            log.log(
                logging.WARNING if unheard else logging.DEBUG,
                "message %s failed at attempt %d",
                deliveries[0].id,
                deliveries[0].attempt,
                exc_info=True,
            )
            await self._tell(given, error)
            return Fail(describe(error)) if self._options.auto_ack else None
        except BaseException as error:  # noqa: BLE001 - raised again by `run`, once everything was given back
            self._broken = error
            if self._main is not None:
                self._main.cancel()
            return Release()

    async def _tell(self, given: Any, error: Exception) -> None:
        """Call `on_error`. An error that it raises is logged, and changes nothing."""
        if self._options.on_error is None:
            return
        try:
            told = self._options.on_error(given, error)
            if inspect.isawaitable(told):
                await told
        except Exception:
            log.exception("the on_error function failed")

    async def _abandon(self) -> None:
        """The caller stops us: what runs is cancelled, and what was not settled is given back with no attempt used."""
        held = [delivery for deliveries in self._running.values() for delivery in deliveries]
        for task in list(self._running):
            task.cancel()
        while self._running:
            await asyncio.gather(*self._running, return_exceptions=True)
        unsettled = [delivery.delivered for delivery in held if not delivery.settled]
        if unsettled:
            await self._queue.broker.settle(released(unsettled))

    def _cancel(self, places: Sequence[At], _: bool) -> None:
        """What was lost or canceled is not worked on any more."""
        for place in places:
            task = self._tasks.get(place)
            if task is not None:
                task.cancel()
