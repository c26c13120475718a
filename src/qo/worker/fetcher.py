"""The fetcher: claims, settles, and keeps leases, on a loop that no task can block."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from qo.client.holding import EXTEND_AFTER, Holder
from qo.core.backoff import LoopBackoff
from qo.core.errors import QoError, Unavailable
from qo.core.held import At
from qo.core.lease import (
    THEN_LIMIT,
    Answer,
    Claimed,
    Complete,
    Delivered,
    LeaseToken,
    Nothing,
    Report,
    Settled,
    Settlement,
    Want,
)
from qo.core.verbs import Broker
from qo.worker.failures import FailureLines
from qo.worker.heartbeats import Heartbeats
from qo.worker.metrics import Readings, WorkerMetrics
from qo.worker.options import WorkerRunOptions
from qo.worker.pressure import Pressure, claim_size, memory_usage
from qo.worker.tasks import log_fields

log = logging.getLogger("qo.worker")

SETTLE_LIMIT = 1000
LAST_SECONDS = {False: 5.0, True: 1.0}
"""How long each of the last calls to the store may take, of a worker that stops, and of one that stops at once."""
MEMORY_SECONDS = 1.0


class Host(Protocol):
    """The user's side. Its calls are thread-safe, and return at once."""

    def registered(self) -> None:
        """The store knows this worker, or will hear of it when it answers again."""
        ...

    def start(self, deliveries: Sequence[Delivered]) -> None: ...

    def give_up(self, places: Sequence[At], *, lost: bool) -> None:
        """Stop working on these: canceled, or lost."""
        ...


class Finished(NamedTuple):
    delivered: Delivered
    report: Report
    started_at: datetime
    seconds: float
    error: BaseException | None = None


class Fetcher:
    """Lives on one loop; `done` and `stop_soon` may be called from any thread."""

    def __init__(
        self,
        broker: Broker,
        host: Host,
        options: WorkerRunOptions,
        *,
        queues: tuple[str, ...],
        kinds: frozenset[str],
        group: str,
        owner: str,
        metrics: WorkerMetrics,
    ) -> None:
        self._broker = broker
        self._host = host
        self._options = options
        self._queues, self._kinds, self._group, self._owner = queues, kinds, group, owner
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._holder = Holder(broker, options.lease, self._give_up)
        self._parked = 0
        self._occupied = 0
        """Slots whose messages are settled, and whose threads go on."""
        self._registered = asyncio.Event()
        self._failure_lines = FailureLines(broker)
        self._finished: deque[Finished] = deque()
        self._some = asyncio.Event()
        self._wake_scheduled = False
        self._freed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._now = False
        """Whether it was told to stop at once."""
        self._empty = asyncio.Event()
        self.pressure = Pressure(options.memory_limit, options.latency_threshold_seconds)
        self._memory = (float("-inf"), 0.0)
        self._heartbeats = Heartbeats(
            broker,
            owner=owner,
            queues=queues,
            group=group,
            kinds=kinds,
            slots=options.max_concurrent_tasks,
            taken=lambda: self._taken,
            pressure=self.pressure,
        )
        slots = options.max_concurrent_tasks
        metrics.bind(
            Readings(
                in_flight=lambda: len(self._holder.held),
                slots=lambda: slots,
                free=lambda: slots - self._taken,
                pressure=lambda: self.pressure,
                polled=broker.polled,
            )
        )

    # From any thread

    def done(self, finished: Finished) -> None:
        """A task has ended."""
        self._finished.append(finished)
        if not self._wake_scheduled:
            self._wake_scheduled = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: its leases run out
                self._loop.call_soon_threadsafe(self._wake)

    def stop_soon(self, *, now: bool) -> None:
        """Claim no more; `now`: do not wait for what runs either."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop, now)

    def occupy_soon(self, change: int) -> None:
        """So many slots more are taken by threads that go on after their messages; fewer, if it is negative."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._occupy, change)

    def extend_soon(self, delivered: Delivered, length: timedelta) -> None:
        asyncio.run_coroutine_threadsafe(self._holder.extend_one(delivered.token, length), self._loop)

    def may_be_over(self, delivered: Delivered) -> bool:
        """Whether the lease of a message may have ended unnoticed, as when this process was stopped for a while."""
        return self._holder.ends.may_be_over(delivered.token)

    async def verified(self, delivered: Delivered) -> None:
        """Wait until the store has said that a lease goes on. If it does not, the host is told to give up."""
        asking = asyncio.run_coroutine_threadsafe(self._verify(delivered), self._loop)
        await asyncio.wrap_future(asking)

    # On its own loop

    async def run(self) -> None:
        """Until told to stop, and everything is settled or released."""
        every = self._options.lease.total_seconds() / EXTEND_AFTER
        heartbeats = self._heartbeats.run(every, lambda: bool(self._holder.held), self._note_registered)
        steps = self._claim_on_and_on(), self._settle_on_and_on(), self._holder.keep(every), heartbeats
        parts = [asyncio.create_task(step) for step in steps]
        claiming, *_ = parts
        try:
            stopped = asyncio.create_task(self._stopping.wait())
            await asyncio.wait([stopped, *parts], return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            claiming.cancel()
            await asyncio.gather(claiming, return_exceptions=True)
            await self._let_finish()
        finally:
            for part in parts:
                part.cancel()
            answers = await asyncio.gather(*parts, return_exceptions=True)
            await self._in_time(self._failure_lines.drained())
            await self._in_time(self._heartbeats.deregister())
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer

    async def _in_time(self, last: Awaitable[object]) -> None:
        """What is said at the end, as long as the store answers soon: a worker ends, also while its store is away."""
        seconds = LAST_SECONDS[self._now]
        try:
            async with asyncio.timeout(seconds):
                await last
        except TimeoutError:
            log.warning("the store did not answer within %g s; what this worker held comes back in time", seconds)

    def _note_registered(self) -> None:
        self._registered.set()
        self._host.registered()

    def _occupy(self, change: int) -> None:
        self._occupied += change
        if change < 0:
            self._freed.set()

    def _wake(self) -> None:
        self._wake_scheduled = False
        self._some.set()

    def _stop(self, now: bool) -> None:
        self._stopping.set()
        if now:
            self._now = True
            self._hurry.set()

    @property
    def _taken(self) -> int:
        return len(self._holder.held) + self._occupied

    @property
    def free(self) -> int:
        return max(0, self._options.max_concurrent_tasks - self._taken - self._parked)

    def _want(self, messages: int) -> Want:
        options = self._options
        return Want(
            token=LeaseToken(secrets.token_hex(16)),
            queues=self._queues,
            group=self._group,
            kinds=self._kinds,
            messages=messages,
            lane_messages=options.lane_batch,
            lease=options.lease,
            owner=self._owner,
        )

    def _wants(self, messages: int) -> list[Want]:
        """So many messages, each claim within its limit, as far as one settle can claim on."""
        size = self._options.claim_batch_size
        return [self._want(min(size, messages - start)) for start in range(0, messages, size)][:THEN_LIMIT]

    def _claim_size(self) -> int:
        options = self._options
        return claim_size(self.free, options.max_concurrent_tasks, options.claim_batch_size, self._factor())

    def _factor(self) -> float:
        """What pressure leaves of a claim."""
        read_at, memory = self._memory
        now = time.monotonic()
        if now - read_at > MEMORY_SECONDS:
            self._memory = now, memory_usage()
            memory = self._memory[1]
        return self.pressure.factor(memory)

    async def _claim_on_and_on(self) -> None:
        await self._registered.wait()  # what a registered worker claims is known to run
        backoff = LoopBackoff()
        while not self._stopping.is_set():
            self._freed.clear()
            size = self._claim_size()
            if size == 0:
                await self._freed.wait()
                continue
            self._parked = size
            try:
                answer = await self._broker.claim_or_wait(self._want(size), None)
            except QoError as error:
                rest = backoff.failed()
                log.warning("could not claim: %s; trying again in %.1f s", error, rest)
                await asyncio.sleep(rest)
                continue
            finally:
                self._parked = 0
            backoff.succeeded()
            if isinstance(answer, Nothing):
                return  # whoever waits for ever is told nothing only when the store is closed
            self._holder.take(answer)
            self._hand_over(answer)

    def _hand_over(self, claimed: Claimed) -> None:
        self._metrics.claimed(len(claimed.deliveries))
        self._host.start(claimed.deliveries)

    async def _settle_on_and_on(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            while self._finished:
                batch = [self._finished.popleft() for _ in range(min(len(self._finished), SETTLE_LIMIT))]
                await self._settle(batch)

    async def _settle(self, batch: Sequence[Finished]) -> None:
        known = [each for each in batch if self._holder.holds(each.delivered)]
        items = [
            Settlement(
                token=each.delivered.token,
                lane=each.delivered.lane,
                offset=each.delivered.offset,
                report=each.report,
                started_at=each.started_at,
            )
            for each in known
        ]
        for each in batch:
            self.pressure.took(each.seconds)
        if not items:
            return
        answers, claimed = await self._settle_and_claim(items, self._refill(len(items)))
        for answer in claimed:
            self._hand_over(answer)
        self._after_dropping()
        self._note(known, answers)

    def _refill(self, settled: int) -> int:
        """How many messages may take the place of so many. Fewer under pressure, and where threads go on."""
        if self._stopping.is_set():
            return 0
        room = self._options.max_concurrent_tasks - self._taken - self._parked + settled
        return max(0, min(room, max(1, int(settled * self._factor()))))

    async def _settle_and_claim(
        self, items: Sequence[Settlement], refill: int
    ) -> tuple[Sequence[Settled], Sequence[Claimed]]:
        """Settle, however long that takes. A message that is not settled in time is answered as lost.

        Each try claims on under tokens of its own, because the one before may have been made; and after one that was
        refused, it only settles.
        """
        backoff = LoopBackoff()
        while True:
            try:
                return await self._holder.settle(items, self._wants(refill))
            except QoError as error:
                if self._hurry.is_set():
                    self._holder.held.forget(items)
                    return [], []
                if not isinstance(error, Unavailable):
                    refill = 0
                rest = backoff.failed()
                log.warning("could not settle %d messages: %s; trying again in %.1f s", len(items), error, rest)
                await asyncio.sleep(rest)

    def _note(self, finished: Sequence[Finished], answers: Sequence[Settled]) -> None:
        for each, answer in zip(finished, answers, strict=False):
            self._metrics.settled(each.report, each.seconds)
            if answer.answer not in (Answer.SETTLED, Answer.REPEATED):
                log.warning("a message was not ours any more when it was settled", extra=log_fields(each.delivered))
            if not isinstance(each.report, Complete):
                self._failure_lines.tell(each.delivered, each.report, answer.verdict, each.error)

    def _after_dropping(self) -> None:
        self._freed.set()
        if not self._holder.held:
            self._empty.set()

    async def _verify(self, delivered: Delivered) -> None:
        holder, backoff = self._holder, LoopBackoff()
        while holder.holds(delivered) and holder.ends.may_be_over(delivered.token):
            await holder.extend_one(delivered.token)
            if holder.ends.may_be_over(delivered.token):  # the store is away
                await asyncio.sleep(backoff.failed())

    def _give_up(self, places: Sequence[At], lost: bool) -> None:
        self._host.give_up(places, lost=lost)
        if lost:
            self._after_dropping()

    async def _let_finish(self) -> None:
        """Wait for what runs, as long as the grace period is; then give the rest back, with no attempt used."""
        self._empty.clear()
        if self._holder.held:
            waits = [asyncio.create_task(each.wait()) for each in (self._empty, self._hurry)]
            seconds = self._options.grace_seconds
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()
        self._hurry.set()
        left = len(self._holder.held)
        if left:
            log.info("released %d messages that were not finished", left)
            with contextlib.suppress(QoError):
                await self._in_time(self._holder.release_all())
