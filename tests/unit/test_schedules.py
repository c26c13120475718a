"""The service that fires schedules: it asks when something is due, when one changed, and not in between."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from qo.broker.broker import LocalBroker
from qo.core.errors import Unavailable
from qo.core.lease import LeaseToken, Want
from qo.core.schedule import Plan, Target
from qo.core.slots import Spec
from qo.stores.sqlite.engine import SqliteEngine
from qo.testing.clock import ManualClock


class Asked(SqliteEngine):
    """Counts how often it is asked what is due."""

    times = 0
    fails = False

    async def due_records(self, kind, limit):
        self.times += 1
        if self.fails:
            raise Unavailable("away")
        return await super().due_records(kind, limit)


def plan(**spec) -> Plan:
    return Plan(target=Target(queue="ticks"), specs=(Spec(**spec),))


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
async def engine(clock):
    return await Asked.open(":memory:", clock=clock.now)


@pytest.fixture
async def broker(engine, clock):
    broker = LocalBroker(engine, clock=clock)
    await quiet(broker)
    yield broker
    await broker.close()


async def quiet(broker: LocalBroker) -> None:
    """Wait until the service has done what it was nudged for."""
    [scheduler] = [each for each in broker.services if each.name == "schedules"]
    await asyncio.sleep(0.02)
    while scheduler.is_ticking:
        await asyncio.sleep(0.01)


async def count(broker: LocalBroker) -> int:
    want = Want(
        token=LeaseToken(f"t{asyncio.get_running_loop().time()}"), queues=("ticks",), messages=100, auto_settle=True
    )
    answer = await broker.claim(want)
    return len(getattr(answer, "deliveries", ()))


async def test_with_no_schedule_it_asks_once(broker, engine, clock):
    for _ in range(20):
        clock.move(seconds=600)
        await quiet(broker)
    assert engine.times == 1


async def test_it_asks_once_before_and_once_after_each_slot(broker, engine, clock):
    await broker.schedules.create_schedule("tick", plan(every=100.0))
    await quiet(broker)
    before = engine.times
    for _ in range(50):
        clock.move(seconds=10)
        await quiet(broker)
    assert await count(broker) == 5
    assert engine.times - before <= 2 * 5 + 5, "what is due, that nothing more is, and its own change"


async def test_a_change_cuts_its_rest_short(broker, engine, clock):
    await broker.schedules.create_schedule("late", plan(every=3600.0))
    await quiet(broker)
    await broker.schedules.create_schedule("soon", plan(at=clock.now() + timedelta(seconds=5)))
    await quiet(broker)
    clock.move(seconds=5)
    await quiet(broker)
    assert await count(broker) == 1


async def test_a_store_that_is_away_is_asked_again(broker, engine, clock):
    await broker.schedules.create_schedule("tick", plan(every=100.0))
    await quiet(broker)
    engine.fails = True
    clock.move(seconds=100)
    await quiet(broker)
    engine.fails = False
    clock.move(seconds=60)
    await quiet(broker)
    assert await count(broker) == 1


async def test_a_cap_keeps_a_host_awake_only_while_a_schedule_is_active(broker, engine, clock):
    await broker.watch_schedules(timedelta(seconds=240))
    await quiet(broker)
    before = engine.times
    for _ in range(6):
        clock.move(seconds=240)
        await quiet(broker)
    assert engine.times == before
    await broker.schedules.create_schedule("late", plan(every=86400.0))
    await quiet(broker)
    before = engine.times
    for _ in range(6):
        clock.move(seconds=240)
        await quiet(broker)
    assert engine.times == before + 6
