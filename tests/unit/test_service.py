"""A service: it ticks at its own times, keeps nudges, and costs nothing in between."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from qo.broker.clock import StoreTimes
from qo.broker.service import Service
from qo.core.backoff import LoopBackoff
from qo.core.errors import Unavailable
from qo.testing.clock import ManualClock


class Counted(Service):
    name = "counting"

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock, LoopBackoff(2.0, 8.0))
        self.ticks = 0
        self.answer: datetime | None = None
        self.error: Exception | None = None
        self.going_on = asyncio.Event()
        self.going_on.set()

    async def tick(self) -> datetime | None:
        self.ticks += 1
        await self.going_on.wait()
        if self.error is not None:
            raise self.error
        return self.answer


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
async def service(clock):
    service = Counted(clock)
    yield service
    service.going_on.set()
    await service.stop()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_parked_service_has_no_timer_and_ticks_when_it_is_nudged(service, clock):
    service.start()
    clock.move(days=1)
    await settled()
    assert (service.ticks, service.is_parked, clock.next_timer) == (0, True, None)
    service.nudge()
    await settled()
    assert (service.ticks, service.is_parked, clock.next_timer) == (1, True, None)


async def test_a_tick_says_when_to_come_again_and_a_nudge_cuts_that_short(service, clock):
    service.answer = clock.now() + timedelta(seconds=60)
    service.nudge()
    await settled()
    assert clock.next_timer == service.answer
    service.nudge(clock.now() + timedelta(seconds=90))
    assert clock.next_timer == service.answer, "it comes sooner anyway"
    service.nudge(clock.now() + timedelta(seconds=10))
    service.answer = None
    clock.move(seconds=10)
    await settled()
    assert (service.ticks, service.is_parked) == (2, True)


async def test_a_nudge_during_a_tick_is_kept(service):
    service.going_on.clear()
    service.nudge()
    await settled()
    service.nudge()
    service.going_on.set()
    await settled()
    assert service.ticks == 2


async def test_what_fails_is_tried_again_later_each_time(service, clock, caplog):
    service.error = Unavailable("the store is away")
    service.nudge()
    for seconds in (2, 4, 8, 8):
        await settled()
        assert clock.next_timer == clock.now() + timedelta(seconds=seconds)
        clock.move(seconds=seconds)
    service.error = None
    await settled()
    assert "counting failed; it is tried again in 2 s" in caplog.text


async def test_a_stopped_service_does_not_tick(service, clock):
    service.nudge(clock.now() + timedelta(seconds=1))
    await service.stop()
    service.nudge()
    clock.move(seconds=2)
    await settled()
    assert (service.ticks, clock.next_timer) == (0, None)


async def test_stopping_waits_for_a_tick_or_cancels_it(clock):
    patient, hasty = Counted(clock), Counted(clock)
    hasty.waits_for_tick = False
    for each in (patient, hasty):
        each.going_on.clear()
        each.nudge()
    await settled()
    stopping = asyncio.create_task(patient.stop())
    await hasty.stop()
    await settled()
    assert not stopping.done()
    patient.going_on.set()
    await stopping
    assert not patient.is_ticking


def test_a_backoff_doubles_to_its_longest_and_begins_anew():
    backoff = LoopBackoff(0.5, 3.0)
    assert [backoff.failed() for _ in range(4)] == [0.5, 1.0, 2.0, 3.0]
    backoff.succeeded()
    assert (backoff.seconds, backoff.failed()) == (0.0, 0.5)
    backoff.failures = 10**9
    assert backoff.failed() == 3.0


async def test_a_fault_of_a_tick_does_not_end_the_service(service, clock, caplog):
    service.error = ValueError("a fault of our own")
    service.going_on.clear()
    service.nudge()
    await settled()
    service.nudge(clock.now() + timedelta(seconds=1))
    service.going_on.set()
    await settled()
    service.error = None
    clock.move(seconds=2)
    await settled()
    assert service.ticks == 2
    assert "a fault of our own" in caplog.text


def test_a_moment_by_the_store_s_clock_is_turned_into_one_of_this_process(clock):
    """The two clocks may differ: what counts is how far off it is."""
    store_now = clock.now() + timedelta(hours=3)
    times = StoreTimes(clock, lambda: store_now)
    assert times.here(store_now + timedelta(seconds=5)) == clock.now() + timedelta(seconds=5)
    assert times.here(None) is None
