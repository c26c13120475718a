"""What is done for a schedule at one time: the policies, against a plain model, and what an edit does not do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.errors import Invalid, QoError, TooLarge
from qo.core.firing import (
    FIRES_AT_ONCE,
    LATE_AFTER,
    backfilled,
    fired,
    new_schedule,
    preview,
    refused,
    replanned,
    step,
    with_pause,
)
from qo.core.outcome import JobState
from qo.core.schedule import CatchUp, FiredBy, Overlap, Plan, Schedule, Skipped, Target
from qo.core.slots import Spec

START = datetime(2026, 1, 1, tzinfo=UTC)
TARGET = Target(queue="reports")


def plan(every: float = 60.0, **options) -> Plan:
    return Plan(target=TARGET, specs=(Spec(every=every),), **options)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


class World:
    """A schedule whose jobs run for as long as a test says."""

    def __init__(self, plan: Plan, lasts: float = 0.0, fails: bool = False) -> None:
        self.schedule = new_schedule("daily", "id", plan, START)
        self.lasts, self.end = lasts, JobState.FAILED if fails else JobState.SUCCEEDED
        self.began: dict[str, datetime] = {}
        self.fires: list[tuple[float, FiredBy]] = []
        self.canceled: list[str] = []

    def look(self, now: datetime) -> None:
        """What a process does that finds the schedule due, until nothing is."""
        for _ in range(10_000):
            if self.schedule.due_at is None or self.schedule.due_at > now:
                return
            states = {job: self.end if now >= began + timedelta(seconds=self.lasts) else JobState.RUNNING
                      for job, began in self.began.items()}  # fmt: skip
            for job in self.canceled:
                states[job] = JobState.CANCELED
            done = step(self.schedule, now, states)
            self.canceled += done.cancel
            jobs = [(fire, f"job {len(self.began) + number}") for number, fire in enumerate(done.fires)]
            self.began |= {job: now for _, job in jobs}
            self.fires += [((fire.slot - START).total_seconds(), fire.by) for fire in done.fires]
            self.schedule = msgspec.json.decode(msgspec.json.encode(fired(done.schedule, jobs, now)), type=Schedule)
        raise AssertionError("it never comes to an end")

    @property
    def slots(self) -> list[float]:
        return [slot for slot, _ in self.fires]

    @property
    def reasons(self) -> set[Skipped]:
        return {run.skipped for run in self.schedule.runs if run.skipped is not None}


def test_slots_that_come_on_time_fire_each_once():
    world = World(plan())
    for second in range(0, 301, 5):
        world.look(at(second))
        world.look(at(second))
    assert world.slots == [60, 120, 180, 240, 300]
    assert (world.schedule.fired, world.schedule.skipped) == (5, 0)


@pytest.mark.parametrize(
    ("policy", "slots"), [(CatchUp.SKIP, [960]), (CatchUp.LAST, [900, 960]), (CatchUp.ALL, [*range(60, 961, 60)])]
)
def test_what_becomes_of_missed_slots(policy, slots):
    world = World(plan(catch_up=policy))
    world.look(at(960 + LATE_AFTER.total_seconds() - 30 - 30))
    assert world.slots == slots
    assert {by for slot, by in world.fires if slot < 960} <= {FiredBy.CATCH_UP}
    assert world.reasons == (set() if policy is CatchUp.ALL else {Skipped.MISSED})


def test_all_missed_slots_have_a_limit_and_a_window():
    world = World(plan(catch_up=CatchUp.ALL, catch_up_limit=3))
    world.look(at(3600))
    assert world.slots == [60, 120, 180, 3600]
    world = World(plan(catch_up=CatchUp.ALL, catch_up_window=300.0))
    world.look(at(3600))
    assert world.slots == [3360, 3420, 3480, 3540, 3600]


def test_a_long_outage_is_made_up_for_in_steps():
    world = World(plan(every=1.0, catch_up=CatchUp.ALL, catch_up_limit=1000))
    world.look(at(500))
    assert world.slots == [*range(1, 501)]
    assert len(world.slots) > FIRES_AT_ONCE


def test_years_without_anybody_cost_no_search_of_every_slot():
    for policy in CatchUp:
        world = World(plan(every=1.0, catch_up=policy))
        world.look(START + timedelta(days=3650))
        assert 1 <= len(world.slots) <= 100 + LATE_AFTER.total_seconds() + 1


def test_overlap_skip_lets_one_job_run():
    world = World(plan(overlap=Overlap.SKIP), lasts=150)
    for second in range(0, 601, 10):
        world.look(at(second))
    assert world.slots == [60, 240, 420, 600]
    assert world.reasons == {Skipped.OVERLAP}


def test_overlap_buffer_one_lets_one_wait():
    world = World(plan(overlap=Overlap.BUFFER_ONE), lasts=1000)
    for second in range(0, 601, 10):
        world.look(at(second))
    assert world.slots == [60, 120]


def test_overlap_cancel_other_cancels_what_runs():
    world = World(plan(overlap=Overlap.CANCEL_OTHER), lasts=1000)
    for second in range(0, 241, 10):
        world.look(at(second))
    assert world.slots == [60, 120, 180, 240]
    assert world.canceled == ["job 0", "job 1", "job 2"]


@given(
    overlap=st.sampled_from([Overlap.ALLOW, Overlap.SKIP, Overlap.BUFFER_ONE, Overlap.BUFFER_ALL]),
    lasts=st.integers(0, 400),
    looks=st.lists(st.integers(1, 50), min_size=5, max_size=40),
)
def test_overlap_against_a_plain_model(overlap, lasts, looks):
    """Slot by slot: it fires unless as many jobs are unfinished as may be."""
    world = World(plan(every=30.0, overlap=overlap), lasts=lasts)
    most = {Overlap.SKIP: 1, Overlap.BUFFER_ONE: 2}.get(overlap, 1000)
    now, dealt_with = 0, 0
    running: list[int] = []
    expected: list[float] = []
    for rest in looks:
        now += rest
        world.look(at(now))
        running = [began for began in running if now < began + lasts]
        for slot in range(dealt_with + 30, now + 1, 30):
            dealt_with = slot
            if len(running) < most:
                running.append(now)
                expected.append(slot)
    assert world.slots == expected


@given(
    every=st.sampled_from([1.0, 7.0, 60.0, 3600.0]),
    jitter=st.sampled_from([0.0, 5.0, 30.0]),
    gap=st.integers(1, 20),
)
def test_a_preview_is_what_fires(every, jitter, gap):
    world = World(plan(every=every, jitter_seconds=jitter, catch_up=CatchUp.ALL, catch_up_limit=10_000))
    told = preview(world.schedule, 50)
    second = 0.0
    while len(world.slots) < 50:
        second += gap * every / 10
        world.look(at(second))
    assert [at(slot) for slot in world.slots][:50] == [each.slot for each in told]
    assert all(each.fires_at >= each.slot for each in told)


def test_an_edit_causes_no_run_and_an_equal_plan_changes_nothing():
    schedule = new_schedule("daily", "id", plan(), START)
    again = replanned(schedule, plan(every=10.0), at(65))
    assert (again.next_slot, again.due_at) == (at(70), at(70))
    assert again.runs[0].skipped is Skipped.EDITED
    same = replanned(schedule, plan(tags=("new",)), at(65))
    assert (same.next_slot, same.plan.tags) == (at(60), ("new",)), "the slot that is due is still due"


def test_a_pause_passes_slots_over():
    paused = with_pause(new_schedule("daily", "id", plan(), START), True, "holiday", at(10))
    assert (paused.due_at, paused.note) == (None, "holiday")
    going_on = with_pause(paused, False, None, at(600))
    assert (going_on.next_slot, going_on.paused) == (at(660), False)


def test_it_begins_and_ends_when_it_is_told():
    world = World(plan(starts_at=at(100), ends_at=at(300), catch_up=CatchUp.ALL))
    world.look(at(1000))
    assert world.slots == [120, 180, 240]
    assert world.schedule.due_at is None
    world = World(plan(runs_limit=2, catch_up=CatchUp.ALL))
    world.look(at(1000))
    assert world.slots == [60, 120]
    assert preview(world.schedule, 5) == []


def test_failures_in_a_row_pause_it_and_say_so():
    world = World(plan(failure_threshold=2), fails=True)
    for second in range(0, 601, 10):
        world.look(at(second))
    assert world.slots == [60, 120]
    assert world.schedule.paused
    assert "2 jobs in a row failed" in (world.schedule.note or "")


def test_a_message_that_is_refused_is_a_slot_that_was_skipped():
    schedule = new_schedule("daily", "id", plan(failure_threshold=1), START)
    done = step(schedule, at(60), {})
    after = refused(done.schedule, done.fires, QoError("the queue is full"), at(60))
    assert after.runs[0].skipped is Skipped.REFUSED
    assert (after.paused, after.due_at) == (True, None)


def test_one_that_cannot_be_computed_pauses_alone_and_says_why():
    schedule = new_schedule("daily", "id", plan(), START)
    broken = msgspec.structs.replace(schedule, plan=plan(exclude=(Spec(cron="* * * * *"),)))
    done = step(broken, at(60), {})
    assert (done.schedule.paused, done.fires) == (True, ())
    assert "exclude" in (done.schedule.note or "")


def test_a_backfill_is_bounded():
    schedule = new_schedule("daily", "id", plan(), START)
    assert backfilled(schedule, at(-120), at(60)) == [at(-120), at(-60), at(0)]
    with pytest.raises(TooLarge):
        backfilled(schedule, at(0), at(10_000_000))
    with pytest.raises(Invalid, match="end"):
        backfilled(schedule, at(10), at(10))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"jitter_seconds": -1.0}, "jitter_seconds"),
        ({"catch_up": "some"}, "catch_up"),
        ({"overlap": "maybe"}, "overlap"),
        ({"dst_gap": "x"}, "dst_gap"),
        ({"runs_limit": 0}, "runs_limit"),
        ({"tags": tuple(map(str, range(30)))}, "tags"),
        ({"starts_at": at(10), "ends_at": at(5)}, "ends_at"),
        ({"specs": ()}, "specs"),
    ],
)
def test_what_a_plan_may_not_say_is_refused_by_name(options, field):
    with pytest.raises(Invalid) as found:
        Plan(**{"target": TARGET, "specs": (Spec(every=60.0),), **options})
    assert found.value.field == field


def test_a_schedule_that_has_ended_and_may_run_again_makes_up_for_nothing():
    world = World(plan(runs_limit=1))
    world.look(at(60))
    more = replanned(world.schedule, plan(runs_limit=5), at(86_400))
    assert (more.next_slot, more.runs[0].skipped) == (at(86_460), None)


def test_an_edit_keeps_the_slot_that_waits_for_its_jitter():
    schedule = new_schedule("daily", "id", plan(every=3600.0, jitter_seconds=1800.0), START)
    assert schedule.next_slot is not None
    assert schedule.due_at is not None
    waiting = schedule.next_slot + (schedule.due_at - schedule.next_slot) / 2
    excluded = (Spec(cron="* * 25 12 *"),)
    kept = replanned(schedule, plan(every=3600.0, jitter_seconds=1800.0, exclude=excluded), waiting)
    assert (kept.next_slot, kept.due_at, kept.runs) == (schedule.next_slot, schedule.due_at, ())
    other = replanned(schedule, plan(every=7200.0), waiting)
    assert other.runs[0].skipped is Skipped.EDITED


def test_slots_that_a_pause_passed_over_are_in_the_runs():
    paused = with_pause(new_schedule("daily", "id", plan(), START), True, None, at(10))
    going_on = with_pause(paused, False, None, at(600))
    assert [(run.skipped, run.slot, run.until) for run in going_on.runs] == [(Skipped.PAUSED, at(60), at(600))]


def test_a_refused_slot_does_not_use_up_the_limit_of_runs():
    schedule = new_schedule("daily", "id", plan(runs_limit=1), START)
    done = step(schedule, at(60), {})
    after = refused(done.schedule, done.fires, QoError("no"), at(60))
    assert (after.fired, after.next_slot) == (0, at(120))


def test_notes_and_plans_are_bounded():
    schedule = new_schedule("daily", "id", plan(), START)
    with pytest.raises(TooLarge, match="note"):
        with_pause(schedule, True, "x" * 501, START)
    with pytest.raises(Invalid, match="note"):
        with_pause(schedule, True, 5, START)
    rules = tuple(Spec(cron="0 0 * * *" + ",0" * 90) for _ in range(100))
    large = Plan(target=Target(queue="q", payload=b"x" * 120_000), specs=rules, exclude=rules)
    with pytest.raises(TooLarge, match="plan"):
        new_schedule("daily", "id", large, START)
    with pytest.raises(TooLarge, match="headers"):
        Target(queue="q", headers={f"h{number}": "x" for number in range(64)})


def test_what_cannot_be_computed_is_refused_before_it_is_stored():
    never = Plan(target=TARGET, specs=(Spec(cron="30 2 * 3 sun#2"),), timezone="America/New_York", dst_gap="skip")
    assert new_schedule("gap", "id", never, START).next_slot is None
    with pytest.raises(Invalid, match="specs"):
        new_schedule("none", "id", plan(exclude=(Spec(cron="* * * * *"),)), START)
    with pytest.raises(Invalid, match="after"):
        preview(new_schedule("daily", "id", plan(), START), 1, datetime(2026, 1, 1))  # noqa: DTZ001
