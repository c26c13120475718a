"""Schedules on every engine: a slot fires once, in the commit that moves the schedule on; what is asked is answered."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from qo.broker.clock import StoreTimes
from qo.broker.scheduler import Scheduler
from qo.broker.schedules import ScheduleRecords
from qo.core.errors import AlreadyExists, Conflict, Invalid, NotFound
from qo.core.outcome import JobState
from qo.core.record import Put
from qo.core.schedule import RECORD_KIND, CatchUp, FiredBy, Overlap, Plan, Skipped, Target
from qo.core.slots import Spec
from tests.conformance.remote import OverHttp
from tests.conformance.saying import claim, done, new_id, payloads, settle


def plan(every: float = 60.0, **options) -> Plan:
    target = options.pop("target", Target(queue="reports", kind="daily", payload=b'{"a":1}', headers={"x": "y"}))
    return Plan(target=target, specs=(Spec(every=every),), **options)


def engine_of(store):
    return store._engine if isinstance(store, OverHttp) else store


@pytest.fixture
def schedules(store):
    if isinstance(store, OverHttp):
        return store._broker.schedules
    return ScheduleRecords(store, new_ids)


def new_ids(count: int):
    return [new_id() for _ in range(count)]


def process(store, clock) -> Scheduler:
    """Another process that has the store open."""
    engine = engine_of(store)
    return Scheduler(engine, clock, StoreTimes(clock, engine.store_now), new_ids)


async def fire(store, clock) -> int:
    """What a process fires that looks now; behind a server, that one may have been quicker."""
    own = process(store, clock)
    await own.tick()
    return own.fired


async def test_a_slot_fires_once_and_says_which_it_is(store, schedules, clock):
    info = await schedules.create_schedule("daily", plan())
    assert (info.rule, info.paused, info.coming[0].slot) == ("Every 1 min", False, clock.now() + timedelta(seconds=60))
    clock.move(seconds=60)
    await asyncio.gather(*(fire(store, clock) for _ in range(3)))
    [job] = await claim(store, "reports")
    assert (job.kind, job.payload) == ("daily", b'{"a":1}')
    slot = "2026-01-01T00:01:00Z"
    assert job.headers == {"x": "y", "qo-schedule": "daily", "qo-slot": slot, "qo-fired-by": "schedule"}
    await settle(store, done(job))
    info = await schedules.schedule("daily")
    assert (info.fired, info.skipped, info.runs[0].outcome) == (1, 0, JobState.SUCCEEDED)
    assert (info.runs[0].slot, info.runs[0].by) == (clock.now(), FiredBy.SCHEDULE)


async def test_a_process_that_looks_learns_when_the_next_is_due(store, schedules, clock):
    looking = process(store, clock)
    assert await looking.tick() is None, "there is no schedule"
    await schedules.create_schedule("late", plan(every=3600.0))
    await schedules.create_schedule("soon", plan(every=10.0))
    assert await looking.tick() == clock.now() + timedelta(seconds=10)


async def test_many_due_at_once_all_fire(store, schedules, clock):
    names = [f"s{number:03}" for number in range(60)]
    for name in names:
        await schedules.create_schedule(name, plan(target=Target(queue="reports", payload=f'"{name}"'.encode())))
    clock.move(seconds=60)
    await asyncio.gather(fire(store, clock), fire(store, clock))
    taken = await claim(store, "reports", messages=100)
    assert sorted(payloads(taken)) == [f'"{name}"'.encode() for name in names]


async def test_missed_slots_are_made_up_for(store, schedules, clock):
    await schedules.create_schedule("all", plan(catch_up=CatchUp.ALL))
    await schedules.create_schedule("last", plan(target=Target(queue="last")))
    clock.move(seconds=600)
    await fire(store, clock)
    assert len(await claim(store, "reports")) == 10
    assert len(await claim(store, "last")) == 2, "the last that was missed, and the one that is due"
    assert (await schedules.schedule("last")).runs[-1].skipped is Skipped.MISSED


async def test_a_slot_is_skipped_while_the_job_before_runs(store, schedules, clock):
    await schedules.create_schedule("daily", plan(overlap=Overlap.SKIP))
    clock.move(seconds=60)
    await fire(store, clock)
    clock.move(seconds=60)
    await fire(store, clock)
    [job] = await claim(store, "reports")
    assert (await schedules.schedule("daily")).runs[0].skipped is Skipped.OVERLAP
    await settle(store, done(job))
    clock.move(seconds=60)
    await fire(store, clock)
    assert len(await claim(store, "reports")) == 1


async def test_buffered_slots_come_one_after_the_other(store, schedules, clock):
    await schedules.create_schedule("daily", plan(overlap=Overlap.BUFFER_ALL))
    for _ in range(3):
        clock.move(seconds=60)
        await fire(store, clock)
    [first] = await claim(store, "reports", lane_messages=1)
    assert await claim(store, "reports") == []
    await settle(store, done(first))
    assert len(await claim(store, "reports", lane_messages=1)) == 1


async def test_cancel_other_ends_the_job_before(store, schedules, clock):
    await schedules.create_schedule("daily", plan(overlap=Overlap.CANCEL_OTHER))
    for _ in range(2):
        clock.move(seconds=60)
        await fire(store, clock)
    assert len(await claim(store, "reports")) == 1
    newest, before = (await schedules.schedule("daily")).runs[:2]
    assert (before.outcome, newest.by) == (JobState.CANCELED, FiredBy.SCHEDULE)


async def test_a_name_is_unique_and_put_is_safe_to_repeat(store, schedules, clock):
    created, info = await schedules.put_schedule("daily", plan())
    again, same = await schedules.put_schedule("daily", plan())
    assert (created, again, same.version) == (True, False, info.version)
    with pytest.raises(AlreadyExists):
        await schedules.create_schedule("daily", plan())
    await schedules.pause_schedules(["daily"], None, True, "holiday")
    _, changed = await schedules.put_schedule("daily", plan(every=30.0))
    assert (changed.paused, changed.note, changed.plan.specs[0].every) == (True, "holiday", 30.0)
    clock.move(seconds=300)
    await fire(store, clock)
    assert await claim(store, "reports") == []


async def test_a_change_is_made_only_of_the_version_that_was_read(store, schedules, clock):
    info = await schedules.create_schedule("daily", plan())
    changed = await schedules.change_schedule("daily", {"tags": ("x",), "jitter_seconds": 5.0}, info.version)
    assert (changed.plan.tags, changed.plan.jitter_seconds) == (("x",), 5.0)
    assert changed.plan.specs == info.plan.specs
    with pytest.raises(Conflict):
        await schedules.change_schedule("daily", {"tags": ()}, info.version)
    with pytest.raises(NotFound):
        await schedules.change_schedule("nightly", {"tags": ()})


async def test_they_are_listed_by_name_and_by_tag(store, schedules, clock):
    for name in "cab":
        await schedules.create_schedule(name, plan(tags=("odd",) if name != "b" else ()))
    assert [each.name for each in await schedules.schedules("", 10, None)] == ["a", "b", "c"]
    assert [each.name for each in await schedules.schedules("a", 1, None)] == ["b"]
    assert [each.name for each in await schedules.schedules("", 10, "odd")] == ["a", "c"]
    assert await schedules.pause_schedules(None, "odd", True) == 2
    assert [each.paused for each in await schedules.schedules("", 10, None)] == [True, False, True]
    assert await schedules.pause_schedules(["a"], None, False) == 1
    with pytest.raises(Invalid, match="names"):
        await schedules.pause_schedules(None, None, True)


async def test_one_that_is_deleted_and_made_anew_repeats_no_slot(store, schedules, clock):
    await schedules.create_schedule("daily", plan())
    clock.move(seconds=60)
    await fire(store, clock)
    assert await schedules.delete_schedule("daily")
    await schedules.create_schedule("daily", plan())
    await fire(store, clock)
    [job] = await claim(store, "reports")
    await settle(store, done(job))
    clock.move(seconds=60)
    await fire(store, clock)
    assert len(await claim(store, "reports")) == 1


async def test_a_person_fires_it_and_makes_up_for_a_range(store, schedules, clock):
    info = await schedules.create_schedule("daily", plan())
    run = await schedules.run_schedule("daily", "by hand", nonce="n1")
    assert (await schedules.run_schedule("daily", "by hand", nonce="n1")).job == run.job, "the same call, repeated"
    begin = clock.now() - timedelta(seconds=180)
    runs = await schedules.backfill_schedule("daily", begin, clock.now(), "gap")
    assert [each.slot for each in runs] == [begin + timedelta(seconds=60 * number) for number in range(3)]
    taken = await claim(store, "reports")
    assert [each.headers["qo-fired-by"] for each in taken] == ["manual", "backfill", "backfill", "backfill"]
    after = await schedules.schedule("daily")
    assert (after.coming, [each.label for each in after.runs]) == (info.coming, ["gap", "gap", "gap", "by hand"])


async def test_a_preview_stores_nothing(store, schedules, clock):
    coming = await schedules.preview_schedule("x", plan(every=30.0), 3)
    assert [each.slot - clock.now() for each in coming] == [timedelta(seconds=30 * number) for number in (1, 2, 3)]
    assert await schedules.schedules("", 10, None) == []
    with pytest.raises(NotFound):
        await schedules.preview_schedule("x", None, 3)


async def test_a_message_that_is_refused_stops_no_other_schedule(store, schedules, clock):
    await store.configure("small", {"max_payload": 10})
    await schedules.create_schedule("bad", plan(target=Target(queue="small", payload=b"x" * 100)))
    await schedules.create_schedule("good", plan())
    clock.move(seconds=60)
    await fire(store, clock)
    assert len(await claim(store, "reports")) == 1
    bad = await schedules.schedule("bad")
    assert (bad.runs[0].skipped, bad.failures) == (Skipped.REFUSED, 1)
    assert "100 bytes" in (bad.error or "")


async def test_one_that_cannot_be_computed_pauses_alone(store, schedules, clock):
    await schedules.create_schedule("broken", plan())
    await schedules.create_schedule("good", plan())
    engine = engine_of(store)
    record = await engine.record(RECORD_KIND, "broken")
    body = record.body.replace(b'"exclude":[]', b'"exclude":[{"cron":"* * * * *"}]')
    assert body != record.body
    await engine.put_record(Put(kind=RECORD_KIND, name="broken", body=body, due_at=record.due_at))
    clock.move(seconds=60)
    await fire(store, clock)
    assert len(await claim(store, "reports")) == 1
    assert "exclude" in ((await schedules.schedule("broken")).note or "")


async def test_a_record_that_cannot_be_read_stops_no_other_schedule(store, schedules, clock):
    """A newer version of qo may have written it."""
    await schedules.create_schedule("good", plan())
    due = clock.now() + timedelta(seconds=60)
    await engine_of(store).put_record(Put(kind=RECORD_KIND, name="future", body=b'{"name":1}', due_at=due))
    clock.move(seconds=60)
    await fire(store, clock)
    assert len(await claim(store, "reports")) == 1
    assert [each.name for each in await schedules.schedules("", 10, None)] == ["good"]
    with pytest.raises(Conflict, match="version"):
        await schedules.schedule("future")
    assert await schedules.delete_schedule("future")
    assert not await schedules.delete_schedule("future")
