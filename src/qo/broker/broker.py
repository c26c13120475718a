"""The broker joins its parts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import cast

import msgspec

from qo.broker.backoff import Backoffs
from qo.broker.claim import Claims
from qo.broker.clock import Clock, StoreTimes, SystemClock
from qo.broker.demands import Demands
from qo.broker.hints import HintCounters
from qo.broker.ids import Ids
from qo.broker.measured import Measured
from qo.broker.push import Pushes
from qo.broker.results import Results
from qo.broker.scheduler import Scheduler
from qo.broker.schedules import ScheduleRecords
from qo.broker.service import Service
from qo.broker.settle import SettleAnswer, Settles
from qo.broker.timers import Housekeeping, Poller, Vigil
from qo.broker.tokens import TokenRecords
from qo.core.capabilities import Capabilities
from qo.core.errors import Closed, Invalid
from qo.core.lease import (
    AckByName,
    Acked,
    Claimed,
    Done,
    Extended,
    Extension,
    Lost,
    Nothing,
    Settlement,
    Undone,
    Unit,
    Want,
)
from qo.core.message import MessageId, NewMessage, Pushed
from qo.core.outcome import Job
from qo.core.polling import GroupBackoff, Polled, PollingStrategy
from qo.core.scaling import Demand
from qo.core.schedule import RECORD_KIND
from qo.core.verbs import Access, Admin, Engine, Hint, Inspect, Schedules, Wires, Workers
from qo.metrics.registry import Registry


class LocalBroker:
    """One process's access to a store. Lives on one event loop; `close` answers every waiter."""

    def __init__(
        self,
        store: Engine,
        *,
        clock: Clock | None = None,
        polling: PollingStrategy | None = None,
        backoff: GroupBackoff | None = None,
    ) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        times = self._times = StoreTimes(self._clock, store.store_now)
        self.metrics = Registry()
        self._ids = Ids(self._clock.now)
        self._counters = HintCounters()
        self._backoffs = Backoffs(self._clock, backoff or GroupBackoff())
        measured = self._measured = Measured(store, self.metrics)
        self._pushes = Pushes(measured)
        store = self._engine = measured.engine
        wakes = self.metrics.histogram("qo_wake_seconds", "From the hint that woke a waiting claim to its answer.")
        self._claims = Claims(
            measured, self._clock, times, self._counters, self._backoffs, wakes.observe, lambda: store.must_poll
        )
        self._settles = Settles(measured, self._claims.give_back)
        self._results = Results(store, self._clock)
        self._demands = Demands(store, self._clock, times, self._counters, lambda: store.must_poll)
        self._housekeeping = Housekeeping(store, self._clock, times)
        self._poller = Poller(store, self._clock, polling or PollingStrategy(), self._must_hear, self._others_wrote)
        self._vigil = Vigil(store, self._clock, self._someone_waits)
        self._scheduler = Scheduler(store, self._clock, times, self._ids.take)
        self.services: list[Service] = [self._poller, self._vigil, self._housekeeping, self._scheduler]
        """What does something at its own times; started with the broker, and stopped with it."""
        self._tokens = TokenRecords(store)
        self._schedules = ScheduleRecords(store, self._ids.take)
        self._watches_schedules = False
        self._closed = False
        self._show_waiting()
        store.listen(self._heard)
        for service in self.services:
            service.start()

    @property
    def capabilities(self) -> Capabilities:
        """What its store can do beyond what every store does."""
        return self._store.capabilities

    @property
    def admin(self) -> Admin:
        return self._engine

    @property
    def access(self) -> Access:
        return self._tokens

    @property
    def schedules(self) -> Schedules:
        return self._schedules

    @property
    def workers(self) -> Workers:
        return self._engine

    @property
    def wires(self) -> Wires:
        """What the wires of other systems need; only where the store's capabilities have `names`."""
        if not self.capabilities.names:
            raise Invalid("store", "keeps no names of messages, which this wire needs; use SQLite or PostgreSQL")
        return cast("Wires", self._engine)

    @property
    def inspect(self) -> Inspect:
        return self._engine

    @property
    def waiting(self) -> int:
        """How many claims are parked."""
        return len(self._claims.waiters)

    def now(self) -> datetime:
        """The time by which this process waits. It is monotonic: changes of the wall clock do not affect it."""
        return self._clock.now()

    def store_now(self) -> datetime:
        """The store's time, as far as this process knows it. It decides what is due and what has expired."""
        return self._store.store_now()

    def polled(self) -> Polled:
        poller = self._poller
        return Polled(poller.polls, poller.empty, poller.backoffs, poller.interval)

    def new_ids(self, count: int) -> list[MessageId]:
        """Ids for messages that are pushed next."""
        return self._ids.take(count)

    def new_id(self) -> MessageId:
        return self._ids.take_one()

    async def push(self, messages: Sequence[NewMessage], nonce: str | None = None) -> Sequence[Pushed]:
        """Answered when stored."""
        self._housekeeping.traffic()
        return await self._pushes.push(messages, nonce)

    async def push_in_parts(self, messages: Sequence[NewMessage]) -> Sequence[Pushed]:
        """Store messages, in several commits if they are too much work for one."""
        self._housekeeping.traffic()
        return await self._pushes.push_in_parts(messages)

    async def claim(self, want: Want) -> Claimed | Nothing:
        """Ask once; never waits."""
        return await self._claims.claim(want)

    async def claim_or_wait(self, want: Want, until: datetime | None, priority: int = 0) -> Claimed | Nothing:
        """Claim, and if nothing is claimable wait until `until` (None: no limit). Closing answers `Nothing`.

        Within a wait group a higher priority is served first, then the longest-waiting.
        """
        await self._start_listening()
        return await self._claims.wait(want, until, priority)

    def release(self, answer: Claimed) -> None:
        """Release the messages of a claim whose caller may not have them any more."""
        self._claims.release(answer)

    async def settle(self, settlements: Sequence[Settlement], then: Sequence[Want] = ()) -> SettleAnswer:
        self._housekeeping.traffic()
        return await self._settles.settle(settlements, then)

    async def extend(self, extensions: Sequence[Extension]) -> Sequence[Extended | Lost]:
        return await self._settles.extend(extensions)

    async def transact(self, unit: Unit) -> Done | Undone:
        self._housekeeping.traffic()
        return await self._settles.transact(unit)

    async def ack_by_name(self, acks: Sequence[AckByName]) -> Sequence[Acked]:
        """Never batched with other calls: the acks of one call are judged together, and only these."""
        self._housekeeping.traffic()
        return await self._measured.ack_by_name(cast("Wires", self._store), acks)

    async def queues_of(self, lanes: Sequence[int], tokens: Sequence[str]) -> Collection[str]:
        """The queues of these lanes, and of those that these tokens have leases on."""
        return await self._engine.queues_of(lanes, tokens)

    async def finished(self, id: MessageId, until: datetime | None) -> Job | None:
        """Wait for a job to be finished; None if nothing is known of it."""
        await self._start_listening()
        return await self._results.wait(id, until)

    async def demand_or_wait(
        self, queues: Sequence[str], group: str, kinds: Collection[str] | None, until: datetime | None
    ) -> Demand:
        """The demand; if there is none, wait for some until `until`. Times are by this process's clock."""
        demand = await self.wait_for_demand(queues, group, kinds, until)
        here = self._times.here
        return msgspec.structs.replace(demand, oldest_at=here(demand.oldest_at), next_at=here(demand.next_at))

    async def wait_for_demand(
        self, queues: Sequence[str], group: str, kinds: Collection[str] | None, until: datetime | None
    ) -> Demand:
        """As `demand_or_wait`, but with times by the store's clock."""
        await self._start_listening()
        return await self._demands.wait(queues, group, kinds, until)

    async def watch_schedules(self, cap: timedelta | None = None) -> None:
        """Hear of schedules that other processes make, from now on, also while nobody waits here. For processes that
        stay: one that comes and goes fires only what it sees due. `cap`: look so often while a schedule is active.
        """
        self._watches_schedules = True
        self._scheduler.cap = cap
        self._scheduler.nudge()
        await self._start_listening()

    async def stop_waiting(self) -> None:
        """Answer every waiter, now and from now on, with `Nothing`; all other calls go on."""
        for part in (self._claims.waiters, self._results, self._demands):
            await part.close()

    async def close(self) -> None:
        """Take no more calls, answer the waiters, finish what is under way, let the store go."""
        if self._closed:
            return
        self._closed = True
        await self.stop_waiting()
        for part in (self._pushes, self._settles, self._claims):
            await part.close()
        for service in self.services:
            await service.stop()
        await self._store.close()

    async def _start_listening(self) -> None:
        """Someone is going to wait."""
        if self._closed:
            raise Closed("this client was closed")
        await self._store.start_listening()
        self._poller.needed()
        self._vigil.needed()

    def _someone_waits(self) -> bool:
        return self._claims.waiting > 0 or len(self._results) > 0 or len(self._demands) > 0

    def _must_hear(self) -> bool:
        return self._watches_schedules or self._someone_waits()

    def _heard(self, hint: Hint) -> None:
        self._counters.heard(hint.queues)
        self._claims.waiters.heard(hint.queues)
        self._demands.heard(hint.queues)
        if hint.records is None or RECORD_KIND in hint.records:
            self._scheduler.nudge()
        if hint.queues is None:
            self._results.look_again()  # a hint without queues may stand for the end of a job
            if self._someone_waits():
                self._poller.needed()  # the store may have stopped listening
        else:
            self._results.finished(hint.finished)

    def _others_wrote(self) -> None:
        self._counters.heard(None)
        self._claims.waiters.polled()
        self._demands.heard(None)
        self._results.look_again()
        self._scheduler.nudge()

    def _show_waiting(self) -> None:
        show, claims, backoffs = self.metrics, self._claims, self._backoffs
        show.counted(
            "qo_unreadable_messages_total",
            "Messages that were buried because their payloads could not be opened.",
            lambda: self._store.unreadable,
        )
        show.counted(
            "qo_verifications_total",
            "Times it was made sure that the store's hints still come.",
            lambda: self._vigil.verifications,
        )
        show.counted(
            "qo_schedule_runs_total",
            "Slots of schedules that this process made jobs of.",
            lambda: self._scheduler.fired,
        )
        show.gauge("qo_waiters", "Claims that are parked.", lambda: self.waiting)
        show.gauge("qo_result_waiters", "Jobs whose end somebody awaits here.", lambda: len(self._results))
        show.counted(
            "qo_undelivered_messages_total",
            "Messages settled at delivery whose caller had gone.",
            lambda: claims.undelivered,
        )
        show.counted("qo_polls_total", "Times the store was asked whether others wrote.", lambda: self._poller.polls)
        show.gauge(
            "qo_backoff_groups", "Groups of waiting claims that rest longer than the least.", lambda: len(backoffs)
        )
        longest = show.gauge(
            "qo_backoff_interval_seconds", "The longest rest of a group of waiting claims.", lambda: backoffs.longest
        )
        longest.joined = "max"
        show.counted("qo_backoffs_total", "Times a group's rest was made longer.", lambda: backoffs.times)
