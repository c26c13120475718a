"""The machinery: claims, settles, and keeps leases, on a loop that no task can block."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

from qo.core.backoff import LoopBackoff
from qo.core.errors import QoError, Unavailable
from qo.core.lane import LaneId
from qo.core.lease import (
    THEN_LIMIT,
    Answer,
    Claimed,
    Complete,
    Delivered,
    Extension,
    LeaseToken,
    Lost,
    Nothing,
    Place,
    Release,
    Report,
    Settled,
    Settlement,
    Want,
)
from qo.core.verbs import Broker
from qo.core.worker import Heartbeat
from qo.worker.failures import FailureLines
from qo.worker.leases import LeaseEnds
from qo.worker.metrics import WorkerMetrics
from qo.worker.options import WorkerRunOptions
from qo.worker.pressure import Pressure, claim_size, memory_usage
from qo.worker.tasks import log_fields

log = logging.getLogger("qo.worker")

EXTEND_AFTER = 3
"""Leases are extended when a third of them is over."""
BEAT_SECONDS = 20.0
"""A worker that holds something says how it is at least this often."""
SETTLE_LIMIT = 1000
MEMORY_SECONDS = 1.0

At = tuple[LeaseToken, int, int]
"""A message under a lease: its token, lane and offset."""


def at(delivered: Delivered) -> At:
    return delivered.token, delivered.lane, delivered.offset


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
        gauges: WorkerMetrics,
    ) -> None:
        self._broker = broker
        self._host = host
        self._options = options
        self._queues, self._kinds, self._group, self._owner = queues, kinds, group, owner
        self._gauges = gauges
        self._loop = asyncio.get_running_loop()
        self._held: dict[At, Delivered] = {}
        self._ends = LeaseEnds()
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
        self._empty = asyncio.Event()
        self.pressure = Pressure(options.memory_limit, options.latency_threshold_seconds)
        self._memory = (float("-inf"), 0.0)
        self._began = datetime.now(UTC)
        self._third = options.lease.total_seconds() / EXTEND_AFTER
        gauges.in_flight(lambda: len(self._held))
        gauges.capacity(options.max_concurrent_tasks, lambda: options.max_concurrent_tasks - self._taken)
        gauges.pressed(lambda: self.pressure)
        gauges.polled(broker.polled)

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
        extension = Extension(token=delivered.token, lease=length)
        asyncio.run_coroutine_threadsafe(self._extend([extension]), self._loop)

    def may_be_over(self, delivered: Delivered) -> bool:
        """Whether the lease of a message may have ended unnoticed, as when this process was stopped for a while."""
        return self._ends.may_be_over(delivered.token)

    async def verified(self, delivered: Delivered) -> None:
        """Wait until the store has said that a lease goes on. If it does not, the host is told to give up."""
        asking = asyncio.run_coroutine_threadsafe(self._verify(delivered), self._loop)
        await asyncio.wrap_future(asking)

    # On its own loop

    async def run(self) -> None:
        """Until told to stop, and everything is settled or released."""
        steps = self._claim_on_and_on, self._settle_on_and_on, self._keep, self._tell
        parts = [asyncio.create_task(step()) for step in steps]
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
            await self._failure_lines.drained()
            with contextlib.suppress(QoError):
                await self._broker.workers.deregister([self._owner])
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer

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
            self._hurry.set()

    @property
    def _taken(self) -> int:
        return len(self._held) + self._occupied

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
            self._take(answer)

    def _take(self, claimed: Claimed) -> None:
        self._gauges.claimed(len(claimed.deliveries))
        for each in claimed.deliveries:
            self._held[at(each)] = each
        first = claimed.deliveries[0]
        self._ends.claimed(first.token, first.expires_at, self._options.lease)
        self._host.start(claimed.deliveries)

    async def _settle_on_and_on(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            while self._finished:
                batch = [self._finished.popleft() for _ in range(min(len(self._finished), SETTLE_LIMIT))]
                await self._settle(batch)

    async def _settle(self, batch: Sequence[Finished]) -> None:
        known = [each for each in batch if at(each.delivered) in self._held]
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
        for each in known:
            self._drop(at(each.delivered))
        for answer in claimed:
            if isinstance(answer, Claimed):
                self._take(answer)
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
    ) -> tuple[Sequence[Settled], Sequence[Claimed | Nothing]]:
        """Settle, however long that takes: what is not said in time is lost, and told so.

        Each try claims on under tokens of its own, because the one before may have been made; and after one that was
        refused, it only settles.
        """
        backoff = LoopBackoff()
        while True:
            try:
                return await self._broker.settle(items, self._wants(refill))
            except QoError as error:
                if self._hurry.is_set():
                    return [], []
                if not isinstance(error, Unavailable):
                    refill = 0
                rest = backoff.failed()
                log.warning("could not settle %d messages: %s; trying again in %.1f s", len(items), error, rest)
                await asyncio.sleep(rest)

    def _note(self, finished: Sequence[Finished], answers: Sequence[Settled]) -> None:
        for each, answer in zip(finished, answers, strict=False):
            self._gauges.settled(each.report, each.seconds)
            if answer.answer not in (Answer.SETTLED, Answer.REPEATED):
                log.warning("a message was not ours any more when it was settled", extra=log_fields(each.delivered))
            if not isinstance(each.report, Complete):
                self._failure_lines.tell(each.delivered, each.report, answer.verdict, each.error)

    def _drop(self, place: At) -> None:
        self._held.pop(place, None)

    def _after_dropping(self) -> None:
        self._freed.set()
        if not self._held:
            self._empty.set()

    async def _keep(self) -> None:
        """When a third of the lease's time is over, extend all leases."""
        while True:
            await asyncio.sleep(self._third)
            await self._extend_all()

    async def _tell(self) -> None:
        """Register; then, as often as leases are extended, say how it is.

        A worker that holds nothing says so once, and is silent, if the store knows that it lives.
        """
        vouched_for, busy = await self._registers(), False
        self._registered.set()
        self._host.registered()
        while True:
            await asyncio.sleep(min(self._third, BEAT_SECONDS))
            if self._held or busy or not vouched_for:
                busy = bool(self._held)
                vouched_for = await self._beat()

    async def _registers(self) -> bool:
        """The first contact. A worker that is refused (its token, its queues) ends: asking again would not help."""
        try:
            return await self._broker.workers.heartbeat([self._now()])
        except Unavailable as error:
            log.warning("could not register: %s", error)
            return False

    async def _beat(self) -> bool:
        """Whether it is known from now on that this worker lives, without its saying so."""
        try:
            return await self._broker.workers.heartbeat([self._now()])
        except QoError as error:
            log.warning("could not register: %s", error)
            return False

    def _now(self) -> Heartbeat:
        slots = self._options.max_concurrent_tasks
        return Heartbeat(
            id=self._owner,
            queues=self._queues,
            group=self._group,
            kinds=tuple(sorted(self._kinds)),
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._began,
            max_capacity=slots,
            available_capacity=max(0, slots - self._taken),
            memory_usage=round(min(max(memory_usage(), 0.0), 1.0), 4),
            pressure=self.pressure.reasons,
        )

    async def _extend_all(self) -> None:
        """One call for all of them."""
        started: dict[LeaseToken, list[Place]] = {}
        for token, lane, offset in self._held:
            started.setdefault(token, []).append(Place(LaneId(lane), offset))
        self._ends.keep_only(started)
        if started:
            lease = self._options.lease
            await self._extend(
                [Extension(token=token, lease=lease, started=tuple(places)) for token, places in started.items()]
            )

    async def _verify(self, delivered: Delivered) -> None:
        place, backoff = at(delivered), LoopBackoff()
        while place in self._held and self._ends.may_be_over(delivered.token):
            await self._extend([Extension(token=delivered.token, lease=self._options.lease)])
            if self._ends.may_be_over(delivered.token):  # the store is away
                await asyncio.sleep(backoff.failed())

    async def _extend(self, extensions: Sequence[Extension]) -> None:
        asked_at = self._ends.now()
        try:
            answers = await self._broker.extend(extensions)
        except QoError as error:
            log.warning("could not extend %d leases: %s", len(extensions), error)
            return
        for extension, answer in zip(extensions, answers, strict=True):
            if not isinstance(answer, Lost):
                self._ends.extended(extension.token, answer.expires_at, extension.lease, asked_at)
                if not answer.canceled:
                    continue
            own = [place for place in self._held if place[0] == extension.token]
            if isinstance(answer, Lost):
                for place in own:
                    self._drop(place)
                self._host.give_up(own, lost=True)
                self._after_dropping()
            else:
                canceled = {(place.lane, place.offset) for place in answer.canceled}
                self._host.give_up([place for place in own if place[1:] in canceled], lost=False)

    async def _let_finish(self) -> None:
        """Wait for what runs, as long as the grace period is; then give the rest back, with no attempt used."""
        self._empty.clear()
        if self._held:
            waits = [asyncio.create_task(each.wait()) for each in (self._empty, self._hurry)]
            seconds = self._options.grace_seconds
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()
        self._hurry.set()
        left = list(self._held.values())
        if left:
            self._host.give_up(list(self._held), lost=True)
            items = [
                Settlement(token=each.token, lane=each.lane, offset=each.offset, report=Release()) for each in left
            ]
            self._held.clear()
            log.info("released %d messages that were not finished", len(left))
            with contextlib.suppress(QoError):
                await self._broker.settle(items)
