"""Queues: settings, purge, delete, retention, history, and the reads."""

from __future__ import annotations

from datetime import timedelta

import pytest

from qo.core.errors import Invalid, NotFound
from qo.core.lane import Start, StartAt
from qo.core.message import id_text
from qo.core.retry import RetryPolicy
from qo.testing.clock import START
from tests.conformance.saying import (
    ORDERS,
    answers,
    buried,
    claim,
    done,
    extension,
    failed,
    message,
    messages,
    new_id,
    nothing,
    payloads,
    settle,
)


async def tidy_until(store, clock, time) -> None:
    """Let housekeeping run at its own times up to then."""
    for _ in range(1000):
        again = await store.tidy()
        if again is None or again > time:
            break
        clock.move_to(max(again, clock.now()))
    clock.move_to(time)
    await store.tidy()


async def test_settings_are_merged_kept_and_answered(store):
    await store.configure(ORDERS, {"lease": 5, "retry": {"attempts": 9}})
    settings = await store.configure(ORDERS, {"retry": {"delay": 3}})
    assert settings.lease == timedelta(seconds=5)
    assert settings.retry == RetryPolicy(attempts=9, delay=timedelta(seconds=3))
    assert (await store.queue(ORDERS)).settings == settings


@pytest.mark.parametrize(
    ("changes", "field", "hint"),
    [
        ({"leese": 5}, "leese", "did you mean 'lease'"),
        ({"retry": {"attemps": 1}}, "retry.attemps", "did you mean 'attempts'"),
        ({"lease": 0}, "lease", "greater than 0"),
        ({"lease": "long"}, "lease", "seconds"),
        ({"max_lost": 2}, "max_lost", "at least 3"),
        ({"max_payload": True}, "max_payload", "int"),
        ({"history": "some"}, "history", "none, outcome, full"),
        ({"retry": 5}, "retry", "RetryPolicy"),
        ({"retry": {"attempts": 0}}, "retry.attempts", "at least 1"),
        ({"ttl": float("inf")}, "ttl", "finite"),
        ({"retain": 1e10}, "retain", "at most"),
    ],
)
async def test_a_bad_setting_is_named_and_nothing_changes(store, changes, field, hint):
    before = await store.configure(ORDERS, {})
    with pytest.raises(Invalid, match=hint) as raised:
        await store.configure(ORDERS, changes)
    assert raised.value.field == field
    assert (await store.queue(ORDERS)).settings == before


async def test_purge_removes_everything_and_the_queue_goes_on(store, clock):
    await store.push(messages(3) + messages(3, key="k"))
    await store.push([message(due_at=clock.now() + timedelta(seconds=5))])
    held = await claim(store, messages=2)
    await settle(store, failed(held[0], after=5))
    assert await store.purge(ORDERS) == 7
    assert await answers(store, done(held[1])) == ["lost"]
    clock.move(seconds=60)
    assert (await nothing(store)).ask_again is None
    assert (await store.jobs([held[0].id])) == [None]
    await store.push(messages(2, key="k"))
    assert payloads(await claim(store)) == [b"0", b"1"]


async def test_delete_removes_all_and_the_name_is_free(store):
    await store.configure(ORDERS, {"lease": 5})
    await store.push(messages(3))
    [*held] = await claim(store)
    await settle(store, buried(held[0]))
    assert await store.delete_queue(ORDERS)
    assert not await store.delete_queue(ORDERS)
    with pytest.raises(NotFound):
        await store.queue(ORDERS)
    await store.push(messages(1))
    assert (await store.queue(ORDERS)).settings.lease == timedelta(seconds=30)
    assert await store.dead(ORDERS, None, None, 10) == []
    assert len(await claim(store)) == 1


async def test_a_message_is_kept_for_retain_after_every_group_has_settled_it(store, clock):
    await store.configure(ORDERS, {"retain": 3600})
    await store.create_group([ORDERS], "slow", Start())
    batch = messages(2)
    await store.push(batch)
    await settle(store, *map(done, await claim(store)))
    await tidy_until(store, clock, clock.now() + timedelta(days=2))
    assert None not in await store.jobs([each.id for each in batch])
    await settle(store, *map(done, await claim(store, group="slow")))
    await tidy_until(store, clock, clock.now() + timedelta(minutes=59))
    assert None not in await store.jobs([each.id for each in batch])
    await tidy_until(store, clock, clock.now() + timedelta(minutes=10))
    assert await store.jobs([each.id for each in batch]) == [None, None]


async def test_what_is_leased_or_waits_for_a_retry_is_not_removed(store, clock):
    await store.configure(ORDERS, {"retain": 0, "lease": 864000})
    await store.push(messages(4))
    held = await claim(store)
    await settle(store, done(held[1]), done(held[3]), failed(held[0], after=3600))
    await tidy_until(store, clock, clock.now() + timedelta(minutes=30))
    assert await answers(store, done(held[2])) == ["settled"]
    clock.move(hours=1)
    assert payloads(await claim(store)) == [b"0"]


async def test_a_group_that_does_not_come_back_holds_nothing_for_ever(store, clock):
    await store.configure(ORDERS, {"retain": 60, "group_idle": 3600})
    await store.create_group([ORDERS], "gone", Start())
    await store.push(messages(3))
    await settle(store, *map(done, await claim(store)))
    await tidy_until(store, clock, clock.now() + timedelta(minutes=50))
    assert (await store.depth(ORDERS, "gone")).ready == 3
    await tidy_until(store, clock, clock.now() + timedelta(minutes=30))
    await store.push([message(payload=b"new")])
    assert payloads(await claim(store, group="gone")) == [b"new"]


async def test_a_default_group_that_is_switched_off_holds_nothing(store, clock):
    await store.configure(ORDERS, {"retain": 60, "default_group": False})
    await store.push(messages(3))
    await settle(store, *map(done, await claim(store, group="only")))
    await tidy_until(store, clock, clock.now() + timedelta(minutes=10))
    await nothing(store)


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("way", ["seek", "new group"])
async def test_what_a_group_went_back_to_is_not_removed(store, clock, key, way):
    """A mark says what was settled then; a seek or a new group goes back behind it."""
    await store.configure(ORDERS, {"retain": 3600, "lease": 86400})
    await store.push(messages(3, key=key))
    await settle(store, *map(done, await claim(store)))
    await tidy_until(store, clock, clock.now() + timedelta(minutes=55))
    group = "default" if way == "seek" else "late"
    if way == "seek":
        await store.seek(ORDERS, "default", Start(StartAt.ALL))
    held = await claim(store, group=group)
    await tidy_until(store, clock, clock.now() + timedelta(hours=3))
    assert len(held) == 3
    assert await answers(store, *map(done, held)) == ["settled"] * 3


async def test_what_is_settled_at_delivery_is_removed_too(store, clock):
    await store.configure(ORDERS, {"retain": 3600})
    await store.push(messages(1, key="k"))
    await tidy_until(store, clock, clock.now() + timedelta(minutes=5))
    await claim(store, auto_settle=True)
    await tidy_until(store, clock, clock.now() + timedelta(hours=2))
    assert await store.lanes(ORDERS, "default", 0, 10) == []


async def test_canceled_intake_is_removed_in_steps(store, clock):
    batch = [message(due_at=clock.now() + timedelta(days=9)) for _ in range(1500)]
    await store.push(batch)
    await store.cancel([each.id for each in batch], "default")
    clock.move(days=2)
    assert await store.tidy() == clock.now()
    assert await store.tidy() is None
    assert await store.jobs([batch[-1].id]) == [None]


async def test_a_token_with_a_live_lane_does_not_keep_housekeeping_busy(store, clock):
    await store.push(messages(1) + messages(1, key="k"))
    held = await claim(store, lease=timedelta(days=1))
    await settle(store, done(held[0]))
    clock.move(minutes=30)
    await store.tidy()
    again = await store.tidy()
    assert again is None or again > clock.now() + timedelta(minutes=1)


async def test_the_size_rule_removes_the_oldest_settled_or_not_and_counts_them(store, clock):
    await store.configure(ORDERS, {"max_length": 3})
    await store.push(messages(10, key="k"))
    await tidy_until(store, clock, clock.now() + timedelta(minutes=2))
    assert (await store.depth(ORDERS, "default")).missed == 7
    assert payloads(await claim(store)) == [b"7", b"8", b"9"]
    assert any("missed 7" in problem for problem in (await store.health()).problems)


async def test_the_age_rule_removes_the_old_settled_or_not(store, clock):
    await store.configure(ORDERS, {"max_age": 600})
    await store.push(messages(2))
    clock.move(minutes=5)
    await store.push([message(payload=b"young")])
    await tidy_until(store, clock, clock.now() + timedelta(minutes=6))
    assert payloads(await claim(store)) == [b"young"]


async def test_the_rules_wait_for_what_is_leased(store, clock):
    await store.configure(ORDERS, {"max_length": 1, "lease": 3600})
    await store.push(messages(5))
    held = await claim(store, messages=2)
    await tidy_until(store, clock, clock.now() + timedelta(minutes=2))
    assert await answers(store, *map(done, held)) == ["settled", "settled"]
    assert len(await claim(store)) == 3


async def test_an_empty_lane_goes_and_its_key_may_come_back(store, clock):
    await store.configure(ORDERS, {"retain": 0})
    await store.push(messages(1, key="k"))
    await settle(store, *map(done, await claim(store)))
    await tidy_until(store, clock, clock.now() + timedelta(minutes=5))
    assert await store.lanes(ORDERS, "default", 0, 10) == []
    await store.push(messages(1, key="k"))
    assert len(await claim(store)) == 1


async def test_outcomes_say_how_a_job_ended(store, clock):
    batch = messages(3)
    await store.push(batch)
    one, two, three = await claim(store, owner="w1")
    await store.extend([extension(one, started=True)])
    clock.move(seconds=2)
    await settle(store, done(one, b'{"a":1}'), buried(two, "bad"))
    await store.cancel([three.id], "default")
    await settle(store, failed(three))
    jobs = await store.jobs([each.id for each in batch])
    assert [(job.state, job.reason, job.error, job.result) for job in jobs] == [
        ("succeeded", None, None, b'{"a":1}'),
        ("failed", "buried", "bad", None),
        ("canceled", "canceled", None, None),
    ]
    assert (jobs[0].attempt, jobs[0].finished_at, jobs[0].lease_owner) == (1, clock.now(), None)
    assert jobs[0].started_at == clock.now() - timedelta(seconds=2)


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_job_that_was_tried_shows_why_that_failed_until_it_ends(store, clock, key):
    [pushed] = batch = messages(1, key=key)
    await store.push(batch)

    async def shown():
        [job] = await store.jobs([pushed.id])
        return job.state, job.attempt, job.error, job.finished_at

    await settle(store, *[failed(each, "first\ntrace", 1) for each in await claim(store)])
    assert await shown() == ("queued", 1, "first\ntrace", None)
    clock.move(seconds=1)
    [held] = await claim(store)
    assert await shown() == ("assigned", 2, "first\ntrace", None)
    await settle(store, failed(held, "second", 1))
    assert await shown() == ("queued", 2, "second", None)
    clock.move(seconds=1)
    await settle(store, *map(done, await claim(store)))
    assert await shown() == ("succeeded", 3, None, clock.now())
    await store.seek(ORDERS, "default", Start(StartAt.ALL))
    assert (await shown())[2:] == (None, None)


async def test_history_none_keeps_no_outcomes(store):
    await store.configure(ORDERS, {"history": "none"})
    await store.push(messages(1))
    [each] = await claim(store)
    await settle(store, done(each, b"1"))
    [job] = await store.jobs([each.id])
    assert (job.state, job.result) == (None, None)


async def test_history_full_keeps_every_change_of_state(store, clock):
    await store.configure(ORDERS, {"history": "full"})
    await store.push(messages(1))
    [each] = await claim(store)
    await store.extend([extension(each, started=True)])
    await settle(store, failed(each, after=0))
    [each] = await claim(store)
    await settle(store, done(each))
    states = [event.state for event in await store.events(each.id)]
    assert states == ["queued", "assigned", "running", "queued", "assigned", "succeeded"]


async def test_a_job_s_state_follows_its_life(store, clock):
    each = message(due_at=clock.now() + timedelta(seconds=5))
    await store.push([each])
    states = []

    async def look() -> None:
        [job] = await store.jobs([each.id])
        states.append((job.state, job.attempt))

    await look()
    clock.move(seconds=5)
    [held] = await claim(store)
    await look()
    clock.move(seconds=30)
    await look()  # the lease ran out, though nobody has claimed
    [held] = await claim(store)
    await settle(store, failed(held, after=0))
    await look()
    [held] = await claim(store)
    await look()
    await settle(store, done(held))
    await look()
    assert states == [
        ("queued", 0),
        ("assigned", 1),
        ("queued", 1),
        ("queued", 1),
        ("assigned", 2),
        ("succeeded", 2),
    ]


async def test_depth_counts_each_thing_once(store, clock):
    await store.push(messages(5) + messages(2, key="k") + [message(due_at=clock.now() + timedelta(seconds=60))])
    held = await claim(store, messages=4)
    await settle(store, failed(held[0], after=60), buried(held[1]))
    depth = await store.depth(ORDERS, "default")
    counts = (depth.ready, depth.retrying, depth.leased, depth.delayed, depth.dead)
    assert counts == (3, 1, 2, 1, 1)
    assert depth.oldest_at is not None


async def test_jobs_are_listed_newest_first_by_state(store):
    batch = messages(5)
    await store.push(batch)
    held = await claim(store, messages=2)
    await settle(store, done(held[0]))
    listed = await store.list_jobs(ORDERS, None, None, 3)
    assert [job.id for job in listed] == [id_text(each.id) for each in reversed(batch)][:3]
    older = await store.list_jobs(ORDERS, None, listed[-1].id, 10)
    assert [job.id for job in older] == [id_text(batch[1].id), id_text(batch[0].id)]
    queued = await store.list_jobs(ORDERS, "queued", None, 10)
    assert [job.id for job in queued] == [id_text(each.id) for each in batch[:1:-1]]


async def test_queues_groups_and_lanes_are_listed(store):
    await store.push([message("b"), message("a", key="k"), message("a"), message("a")])
    assert [queue.name for queue in await store.queues("", 10)] == ["a", "b"]
    assert [queue.name for queue in await store.queues("a", 10)] == ["b"]
    await claim(store, "a", group="g", messages=1, lanes=1)
    assert {group.name: group.lag for group in await store.groups("a")} == {"default": 3, "g": 2}
    lanes = await store.lanes("a", "default", 0, 10)
    assert {(lane.key, lane.kind, lane.tail, lane.lag) for lane in lanes} == {
        ("k", None, 1, 1),
        (None, "default", 2, 2),
    }


async def test_an_overview_says_how_queues_stand(store, clock):
    """Waiting, running and failed; the oldest; and what entered, and what was settled, in the last minute."""
    await store.push([message("idle")])
    await settle(store, *map(done, await claim(store, "idle")))
    clock.move(minutes=2)
    began = clock.now()
    later = message("busy", due_at=began + timedelta(hours=1))
    await store.push([*(message("busy") for _ in range(4)), message("busy", key="k"), later])
    await store.pause("later", paused=True)
    first, second, third = await claim(store, "busy", messages=3)
    await settle(store, done(first), buried(second))
    found = {each.name: each for each in await store.overview("", 10)}
    assert list(found) == ["busy", "idle", "later"]
    busy = found["busy"]
    assert (busy.waiting, busy.running, busy.failed, busy.rate_in) == (3, 1, 1, 5)
    assert busy.oldest_at == began
    assert (found["later"].paused, found["busy"].paused) == (True, False)
    assert (found["idle"].waiting, found["idle"].rate_in, found["idle"].rate_out, found["idle"].oldest_at) == (
        0,
        0,
        0,
        None,
    )
    await settle(store, done(third))
    assert [each.rate_out for each in await store.overview("", 1)] == [3]
    assert [each.name for each in await store.overview("busy", 1)] == ["idle"]


async def test_a_job_whose_payload_is_no_text_can_be_read(store):
    binary = message(payload=b"\x00\xff\xfe", headers={"content-type": "application/octet-stream"})
    later = message(payload=b"\xff", due_at=START + timedelta(hours=1))
    await store.push([binary, later])
    assert [job.payload for job in await store.jobs([binary.id, later.id])] == [b"\x00\xff\xfe", b"\xff"]
    assert {job.payload for job in await store.list_jobs(ORDERS, None, None, 10)} == {b"\x00\xff\xfe", b"\xff"}


async def test_reads_of_what_is_not_there(store):
    assert await store.jobs([new_id()]) == [None]
    assert await store.events(new_id()) == []
    for read in (store.queue(ORDERS), store.depth(ORDERS, "default"), store.groups(ORDERS), store.purge(ORDERS)):
        with pytest.raises(NotFound, match=ORDERS):
            await read
    await store.push([message()])
    with pytest.raises(NotFound, match="no group 'g'"):
        await store.depth(ORDERS, "g")


async def test_health_says_what_is_there(store):
    await store.push(messages(2))
    health = await store.health()
    assert health.problems == ()
    assert health.details["messages"] == "2"
    assert health.schema >= 1


@pytest.mark.parametrize("what", ["purge", "seek"])
async def test_what_died_before_a_purge_or_a_seek_is_a_dead_letter(store, clock, what):
    """Nobody looked between the last loss and that."""
    await store.configure(ORDERS, {"max_lost": 3})
    await store.push(messages(1))
    for _ in range(3):
        assert len(await claim(store)) == 1
        clock.move(seconds=600)
    await (store.purge(ORDERS) if what == "purge" else store.seek(ORDERS, "default", Start(StartAt.NEW)))
    assert (await store.depth(ORDERS, "default")).dead == 1


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_claim_does_not_deliver_what_is_older_than_its_queue_keeps(store, clock, key):
    """Whether or not housekeeping came first; retries, too."""
    await store.configure(ORDERS, {"max_age": 600, "retry": {"delay": 1, "jitter": 0}})
    await store.push(messages(2, key=key))
    if key is None:
        [first, _] = await claim(store)
        await settle(store, failed(first, after=1))
        clock.move(minutes=1)
    clock.move(minutes=5)
    await store.push([message(payload=b"young", key=key)])
    clock.move(minutes=6)
    assert payloads(await claim(store)) == [b"young"]
    assert payloads(await claim(store)) == []


@pytest.mark.parametrize("key", [None, "k"])
async def test_what_a_lease_lost_counts_as_waiting(store, clock, key):
    await store.push(messages(3, key=key))
    await claim(store, messages=2, lease=timedelta(seconds=10))
    depth = await store.depth(ORDERS, "default")
    assert (depth.ready, depth.leased) == (1, 2)
    clock.move(seconds=11)
    depth = await store.depth(ORDERS, "default")
    assert (depth.ready, depth.retrying, depth.leased) == (3, 0, 0)
