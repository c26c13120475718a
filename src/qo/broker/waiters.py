"""Waiters: claims that are parked until something is claimable or their time is up.

Waiters that want the same thing share a wait group. An empty answer to one of them is
an empty answer to all, so a wait group has one ask-again timer and asks the store for
a few of its waiters at a time: first one, then twice as many while all of them
are served. One push into ten thousand waiters costs two store calls, and wakes one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from qo.broker.backoff import Backoffs
from qo.broker.batcher import is_answered
from qo.broker.clock import Clock, StoreTimes, Timer
from qo.broker.hints import HintCounters
from qo.broker.line import Line, Waiter, WaitKey
from qo.core.errors import Unavailable
from qo.core.lease import Claimed, Nothing, Want

Ask = Callable[[list[Want]], Awaitable[list[Claimed | Nothing]]]
GiveBack = Callable[[Want, Claimed | Nothing], None]
FIRST_ROUND = 1


class Known(NamedTuple):
    """An empty answer: the hint count when it was given, and when time may bring something, by this process's clock."""

    heard: int
    ask_again: datetime | None
    owner_limited: bool = False


EMPTIES_LIMIT = 10_000


class WaitGroup:
    """The waiters of one key."""

    def __init__(
        self,
        key: WaitKey,
        owner: Waiters,
        emptied: Callable[[WaitGroup], None],
    ) -> None:
        self.key = key
        self.waiters = Line()
        self.owner_limited = False
        self._owner = owner
        self._clock = owner.clock
        self._counters = owner.counters
        self._emptied = emptied
        self._woken: float | None = None
        self._timer: Timer | None = None
        self._wake_at: datetime | None = None
        self._serving: asyncio.Task[None] | None = None
        self._again = False

    def wake(self) -> None:
        """Ask the store soon; while it is being asked, ask once more afterwards."""
        if not self.waiters:
            return
        self._again = True
        if self._woken is None:
            self._woken = time.perf_counter()
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())

    def polled(self) -> None:
        """Another process wrote something: ask the store now, or when this group's rest after empty answers ends."""
        due = self._owner.backoffs.due(self.key)
        if due is None or due <= self._clock.now():
            self.wake()
        else:
            self.wake_at(due)

    def wake_at(self, when: datetime | None) -> None:
        """Ask the store at that time, if not sooner."""
        if when is None or (self._wake_at is not None and self._wake_at <= when):
            return
        self._stop_timer()
        self._wake_at = when
        self._timer = self._clock.call_at(when, self._time_has_come)

    def _time_has_come(self) -> None:
        self._wake_at = None
        self.wake()

    def remove(self, waiter: Waiter) -> None:
        if not self.waiters.remove(waiter):
            return  # it was answered before; the wait group may not be the one of its key any more
        if waiter.timer is not None:
            waiter.timer.cancel()
        if not self.waiters:
            if self._serving is None and not self._again and not self.owner_limited:
                self._owner.remember(self.key, self._wake_at)
            self._stop_timer()
            if self._serving is None:
                self._emptied(self)

    async def close(self) -> None:
        self._stop_timer()
        for waiter in list(self.waiters):
            self.answer(waiter, Nothing(None))
        if self._serving is not None:
            await self._serving

    def answer(self, waiter: Waiter, answer: Claimed | Nothing) -> None:
        self.remove(waiter)
        if not waiter.answer.done():
            waiter.answer.set_result(answer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._wake_at = None

    async def _serve(self) -> None:
        try:
            while self._again and self.waiters:
                self._again = False
                await self._serve_all()
        except Exception as error:  # noqa: BLE001 - it belongs to those who wait
            for waiter in list(self.waiters):
                self.remove(waiter)
                if not waiter.answer.done():
                    waiter.answer.set_exception(error)
        finally:
            self._serving = self._woken = None
            if not self.waiters:
                self._emptied(self)
            elif self._again:
                self.wake()

    async def _serve_all(self) -> None:
        """Rounds of waiters, twice as many each time, until one of them gets nothing."""
        size, past = FIRST_ROUND, 0
        while round_ := list(islice(self.waiters, past, past + size)):
            before = self._counters.count(self.key.queues)
            answers = await self._asked_for(round_)
            empty = [answer for answer in answers if isinstance(answer, Nothing)]
            self._owner.backoffs.asked(self.key, found=not empty)
            for waiter, answer in zip(round_, answers, strict=True):
                if isinstance(answer, Claimed):
                    self._deliver(waiter, answer)
                elif waiter.over:
                    self.answer(waiter, Nothing(None))
            await asyncio.sleep(0)  # who was served goes first
            self.owner_limited = any(answer.owner_limited for answer in empty)
            if self.owner_limited:
                past += len(empty)  # it is there, but not for these owners
            elif empty:
                self._rest(empty, before)
                return
            size *= 2
            if self.owner_limited:
                self._rest(empty, before)

    async def _asked_for(self, waiters: list[Waiter]) -> list[Claimed | Nothing | None]:
        """Ask the store for a round of waiters. A refused want raises in its own waiter and is None here."""
        for waiter in waiters:
            waiter.asked = True
        try:
            return [*await self._owner.ask([waiter.want for waiter in waiters])]
        except Unavailable:
            raise
        except Exception:  # noqa: BLE001 - raised again in the waiter that caused it
            return [await self._asked_alone(waiter) for waiter in waiters]
        finally:
            for waiter in waiters:
                waiter.asked = False

    async def _asked_alone(self, waiter: Waiter) -> Claimed | Nothing | None:
        try:
            [answer] = await self._owner.ask([waiter.want])
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - raised in this waiter
            self.remove(waiter)
            if not waiter.answer.done():
                waiter.answer.set_exception(error)
            return None
        return answer

    def time_is_up(self, waiter: Waiter) -> None:
        """Answer `Nothing`, unless the store is being asked for this waiter: then the store's answer counts."""
        if waiter.asked:
            waiter.over = True
        else:
            self.answer(waiter, Nothing(None))

    def _deliver(self, waiter: Waiter, claimed: Claimed) -> None:
        if waiter.answer.done():
            self._owner.give_back(waiter.want, claimed)
            return
        if self._woken is not None:
            self._owner.woke(time.perf_counter() - self._woken)
        self.answer(waiter, claimed)

    def _rest(self, empty: list[Nothing], before: int) -> None:
        for answer in empty:
            self.wake_at(self._owner.times.here(answer.ask_again))
        if self._counters.count(self.key.queues) != before:
            self._again = True


class Waiters:
    """All waiters of one broker, by key."""

    def __init__(
        self,
        clock: Clock,
        times: StoreTimes,
        counters: HintCounters,
        ask: Ask,
        give_back: GiveBack,
        backoffs: Backoffs,
        woke: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.clock = clock
        self.times = times
        self.counters = counters
        self.ask = ask
        self.give_back = give_back
        self.backoffs = backoffs
        self.woke = woke
        """Called with the seconds from a hint to the answer that it brought."""
        self._wait_groups: dict[WaitKey, WaitGroup] = {}
        self._emptied: dict[WaitKey, Known] = {}
        self._closed = False

    def __len__(self) -> int:
        return sum(len(wait_group.waiters) for wait_group in self._wait_groups.values())

    def stands_for(self, want: Want) -> Known | None:
        """The last empty answer of the same wait group, if it still holds: then the store need not be asked."""
        key = WaitKey.of(want)
        wait_group = self._wait_groups.get(key)
        if wait_group is not None and wait_group.waiters:
            return None if wait_group.owner_limited else Known(0, None)
        known = self._emptied.get(key)
        if known is None or known.heard != self.counters.count(key.queues):
            return None
        if known.ask_again is not None and known.ask_again <= self.clock.now():
            return None
        return known

    def remember(self, key: WaitKey, ask_again: datetime | None) -> None:
        """The last waiter left with nothing. The next one need not ask the store, if no hint has come meanwhile.

        So a client that waits again and again, half a minute each time, costs the store nothing.
        """
        self._emptied.pop(key, None)
        self._emptied[key] = Known(self.counters.count(key.queues), ask_again)
        if len(self._emptied) > EMPTIES_LIMIT:
            del self._emptied[next(iter(self._emptied))]

    def known_from(self, empty: Nothing) -> Known:
        """What an empty answer of the store says, as of now."""
        return Known(0, self.times.here(empty.ask_again), empty.owner_limited)

    async def park(
        self, want: Want, until: datetime | None, empty: Known | None, before: int, priority: int = 0
    ) -> Claimed | Nothing:
        """Wait for an answer. `empty` is what is known, and `before` the hint count when the store was asked."""
        if self._closed:
            return Nothing(None)
        wait_group = self._wait_group(WaitKey.of(want))
        waiter = Waiter(want, asyncio.get_running_loop().create_future(), priority)
        wait_group.waiters.add(waiter)
        if until is not None:
            waiter.timer = self.clock.call_at(until, lambda: wait_group.time_is_up(waiter))
        if empty is not None:
            wait_group.wake_at(empty.ask_again)
            wait_group.owner_limited |= empty.owner_limited
            if self.counters.count(want.queues) != before:
                wait_group.wake()
        try:
            return await waiter.answer
        except asyncio.CancelledError:
            if is_answered(waiter.answer):
                self.give_back(want, waiter.answer.result())
            raise
        finally:
            wait_group.remove(waiter)

    def heard(self, queues: frozenset[str] | None) -> None:
        for wait_group in list(self._wait_groups.values()):
            if wait_group.key.concerns(queues):
                wait_group.wake()

    def polled(self) -> None:
        """Another process wrote something, and nobody can say where."""
        for wait_group in list(self._wait_groups.values()):
            wait_group.polled()

    def next_of(self, want: Want) -> Waiter | None:
        """The longest-waiting waiter that can take over what this want got: same key, same size, same terms."""
        wait_group = self._wait_groups.get(WaitKey.of(want))
        for waiter in wait_group.waiters if wait_group is not None else ():
            if _same_terms(waiter.want, want) and not waiter.answer.done():
                return waiter
        return None

    def hand_over(self, waiter: Waiter, claimed: Claimed) -> None:
        self._wait_groups[WaitKey.of(waiter.want)].answer(waiter, claimed)

    async def close(self) -> None:
        """Answer everyone who waits, or comes to wait, with nothing."""
        self._closed = True
        for wait_group in list(self._wait_groups.values()):
            await wait_group.close()

    def _wait_group(self, key: WaitKey) -> WaitGroup:
        wait_group = self._wait_groups.get(key)
        if wait_group is None:
            wait_group = self._wait_groups[key] = WaitGroup(key, self, self._forget)
        return wait_group

    def _forget(self, wait_group: WaitGroup) -> None:
        if self._wait_groups.get(wait_group.key) is wait_group:
            del self._wait_groups[wait_group.key]


def _same_terms(one: Want, other: Want) -> bool:
    return (one.messages, one.lanes, one.lane_messages, one.lease, one.owner, one.auto_settle) == (
        other.messages, other.lanes, other.lane_messages, other.lease, other.owner, other.auto_settle
    )  # fmt: skip
