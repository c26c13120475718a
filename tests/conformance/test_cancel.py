"""cancel and time to live."""

from __future__ import annotations

from datetime import timedelta

import pytest

from qo.core.lease import Place
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
    released,
    settle,
)


async def cancel(store, each, group="default") -> str:
    [answer] = await store.cancel([each.id], group)
    return answer.value


async def state(store, each) -> tuple[str | None, str | None]:
    [job] = await store.jobs([each.id])
    return job.state, job.reason


async def test_in_intake_the_row_goes(store, clock):
    each = message(due_at=clock.now() + timedelta(seconds=5))
    await store.push([each])
    assert await cancel(store, each) == "canceled"
    assert await state(store, each) == ("canceled", "canceled")
    clock.move(seconds=5)
    assert (await nothing(store)).ask_again is None
    assert await cancel(store, each) == "not_found"


@pytest.mark.parametrize("key", [None, "k"])
async def test_not_yet_claimed_it_is_skipped(store, key):
    batch = messages(3, key=key)
    await store.push(batch)
    assert await cancel(store, batch[1]) == "canceled"
    assert (await store.depth(ORDERS, "default")).ready == 2
    run = await claim(store)
    assert payloads(run) == [b"0", b"2"]
    assert [each.answer for each in await settle(store, *map(done, run))] == ["settled", "settled"]
    assert await state(store, batch[1]) == ("canceled", "canceled")
    assert await cancel(store, batch[1]) == "finished"


async def test_a_retry_goes(store, clock):
    await store.push([message()])
    [each] = await claim(store)
    await settle(store, failed(each, after=60))
    assert await cancel(store, each) == "canceled"
    assert (await nothing(store)).ask_again is None


async def test_a_blocked_head_is_skipped_with_its_backoff_and_attempts(store):
    await store.push(messages(2, key="k"))
    [head] = await claim(store, messages=1)
    await settle(store, failed(head, after=600))
    assert await cancel(store, head) == "canceled"
    [following] = await claim(store)
    assert (following.payload, following.attempt) == (b"1", 1)


async def test_canceling_behind_a_blocked_head_leaves_its_backoff_alone(store, clock):
    batch = messages(3, key="k")
    await store.push(batch)
    [head] = await claim(store, messages=1)
    await settle(store, failed(head, after=60))
    await cancel(store, batch[1])
    assert (await nothing(store)).ask_again == clock.now() + timedelta(seconds=60)
    clock.move(seconds=60)
    assert [(each.payload, each.attempt) for each in await claim(store)] == [(b"0", 2), (b"2", 1)]


@pytest.mark.parametrize("key", [None, "k"])
async def test_leased_its_holder_is_told_and_may_still_complete(store, key):
    await store.push([message(key=key)])
    [each] = await claim(store)
    assert await cancel(store, each) == "requested"
    [extended] = await store.extend([extension(each)])
    assert extended.canceled == (Place(each.lane, each.offset),)
    [answer] = await settle(store, done(each))
    assert answer.verdict == "completed"
    assert (await state(store, each))[0] == "succeeded"


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("report", [failed, released, buried])
async def test_leased_and_canceled_anything_but_completion_ends_it(store, key, report):
    await store.push([message(key=key), message(payload=b"next", key=key)])
    [each] = await claim(store, messages=1)
    await cancel(store, each)
    [answer] = await settle(store, report(each))
    assert answer.verdict == "canceled"
    assert payloads(await claim(store)) == [b"next"]
    assert await store.dead(ORDERS, "default", None, 10) == []


@pytest.mark.parametrize("key", [None, "k"])
async def test_leased_canceled_and_lost_it_does_not_come_back(store, clock, key):
    await store.push(messages(3, key=key))
    held = await claim(store)
    await cancel(store, held[1])
    clock.move(seconds=31)
    first = await claim(store)
    await settle(store, *map(done, first))
    assert payloads(first + await claim(store)) == [b"0", b"2"]


async def test_canceled_in_a_run_that_is_given_back_it_becomes_a_skip(store):
    await store.push(messages(4, key="k"))
    run = await claim(store)
    await cancel(store, run[2])
    await settle(store, failed(run[1], after=0))
    assert payloads(await claim(store)) == [b"1", b"3"]


async def test_a_lease_that_ran_out_is_no_obstacle(store, clock):
    await store.push([message()])
    [each] = await claim(store)
    clock.move(seconds=31)
    assert await cancel(store, each) == "canceled"
    await nothing(store)
    assert await answers(store, done(each)) == ["lost"]


async def test_it_concerns_the_group_that_is_named(store):
    await store.push([message()])
    await store.create_group([ORDERS], "audit", _all())
    [each] = await claim(store)
    await settle(store, done(each))
    assert await cancel(store, each) == "finished"
    assert await cancel(store, each, "audit") == "canceled"
    await nothing(store, group="audit")
    assert await cancel(store, each, "no such group") == "not_found"


async def test_an_unknown_message_is_not_found(store):
    assert await store.cancel([new_id()], "default") == ["not_found"]


@pytest.mark.parametrize("key", [None, "k"])
async def test_time_to_live_runs_from_the_due_time(store, clock, key):
    each = message(key=key, ttl=timedelta(seconds=10), due_at=clock.now() + timedelta(seconds=5))
    other = message(key=key, payload=b"lives")
    await store.push([each, other])
    clock.move(seconds=14)
    fresh = await claim(store)
    assert payloads(fresh) == [b"lives", b"1"]
    await settle(store, *map(released, reversed(fresh)))
    clock.move(seconds=1)
    assert payloads(await claim(store)) == [b"lives"]
    assert await state(store, each) == ("canceled", "expired")


async def test_an_expired_head_does_not_stand_in_the_way_of_other_kinds(store, clock):
    await store.push([message(kind="a", key="k", ttl=timedelta(seconds=10)), message(kind="b", key="k")])
    empty = await nothing(store, kinds=frozenset("b"))
    assert empty.ask_again == clock.now() + timedelta(seconds=10)
    clock.move(seconds=10)
    assert len(await claim(store, kinds=frozenset("b"))) == 1


@pytest.mark.parametrize("key", [None, "k"])
async def test_time_to_live_is_judged_when_a_lease_gives_back(store, clock, key):
    await store.push([message(key=key, ttl=timedelta(seconds=10))])
    [each] = await claim(store)
    clock.move(seconds=11)
    [answer] = await settle(store, failed(each))
    assert answer.verdict == "canceled"
    assert await state(store, each) == ("canceled", "expired")


async def test_a_queue_may_set_the_default(store, clock):
    await store.configure(ORDERS, {"ttl": 10})
    await store.push([message()])
    clock.move(seconds=10)
    await nothing(store)


def _all():
    from qo.core.lane import Start

    return Start()
