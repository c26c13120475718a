"""claim: what is taken, in which order, and when to ask again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from qo.core.errors import Invalid
from qo.core.lane import Filter
from qo.core.lease import Claimed, LeaseToken, Nothing, Want
from qo.core.outcome import JobState
from tests.conformance.saying import (
    ORDERS,
    answers,
    claim,
    done,
    failed,
    message,
    messages,
    nothing,
    payloads,
    settle,
    want,
)


async def test_higher_priority_comes_first_then_the_oldest_head(store, clock):
    await store.push([message(payload=b"old")])
    clock.move(seconds=1)
    await store.push([message(payload=b"keyed", key="k")])
    clock.move(seconds=1)
    await store.push([message(payload=b"urgent", priority=10), message(payload=b"lazy", priority=-10)])
    assert payloads(await claim(store)) == [b"urgent", b"old", b"keyed", b"lazy"]


async def test_a_keyed_lane_has_the_priority_of_its_head(store, clock):
    await store.push([message(payload=b"low", key="a"), message(payload=b"behind", key="a", priority=50)])
    clock.move(seconds=1)
    await store.push([message(payload=b"other", key="b", priority=5)])
    assert payloads(await claim(store, lane_messages=1)) == [b"other", b"low"]


async def test_due_retries_come_before_fresh_messages(store, clock):
    await store.push(messages(2))
    [first] = await claim(store, messages=1)
    await settle(store, failed(first, after=1))
    clock.move(seconds=2)
    again, fresh = await claim(store)
    assert (again.id, again.attempt) == (first.id, 2)
    assert fresh.payload == b"1"


async def test_only_accepted_kinds_are_taken(store):
    await store.push(
        [message(payload=b"a", kind="a"), message(payload=b"b", kind="b"), message(payload=b"c", kind="c")]
    )
    assert sorted(payloads(await claim(store, kinds=frozenset(["a", "c"])))) == [b"a", b"c"]


async def test_a_run_stops_before_a_kind_that_is_not_accepted(store):
    await store.push([message(payload=kind.encode(), kind=kind, key="k") for kind in "aaba"])
    run = await claim(store, kinds=frozenset("a"))
    assert payloads(run) == [b"a", b"a"]
    await settle(store, done(run[-1]))
    await nothing(store, kinds=frozenset("a"))
    [other] = await claim(store, kinds=frozenset("b"))
    await settle(store, done(other))
    assert payloads(await claim(store, kinds=frozenset("a"))) == [b"a"]


async def test_what_nobody_here_serves_does_not_stand_in_the_way(store):
    await store.push([message(payload=b"x", kind="unserved", key=f"k{number}") for number in range(50)])
    await store.push([message(payload=b"mine", kind="served", key="mine")])
    assert payloads(await claim(store, messages=1, kinds=frozenset(["served"]))) == [b"mine"]


async def test_limits_on_messages_lanes_and_runs(store):
    await store.push([message(key=key, payload=key.encode()) for key in "aaabbbccc"])
    assert payloads(await claim(store, messages=5, lanes=1)) == [b"a"] * 3
    assert payloads(await claim(store, messages=3, lane_messages=2)) == [b"b", b"b", b"c"]


async def test_one_key_alone(store):
    await store.push([message(key=key, payload=key.encode()) for key in "aab"])
    assert payloads(await claim(store, key="a")) == [b"a", b"a"]
    await nothing(store, key="a")
    await nothing(store, key="never pushed")


async def test_several_queues_and_unknown_ones(store):
    await store.push([message("one", b"1"), message("two", b"2"), message("three", b"3")])
    assert sorted(payloads(await claim(store, "one", "two", "unknown"))) == [b"1", b"2"]


async def test_a_filter_takes_from_matching_queues(store):
    await store.push([message("mail.send", b"1"), message("mail.sort", b"2"), message("print.send", b"3")])
    assert sorted(payloads(await claim(store, filter=Filter(namespace="mail")))) == [b"1", b"2"]
    assert payloads(await claim(store, filter=Filter(task="send"))) == [b"3"]


async def test_all_deliveries_of_a_claim_share_its_token(store):
    await store.push(messages(2) + messages(2, key="k"))
    token = LeaseToken("mine")
    [answer] = await store.claim([Want(token=token, queues=(ORDERS,), messages=10)])
    assert isinstance(answer, Claimed)
    assert {each.token for each in answer.deliveries} == {token}
    assert len({each.lane for each in answer.deliveries}) == 2


async def test_a_delivery_carries_everything_that_was_pushed(store, clock):
    pushed = message(payload=b"\x00\xff", kind="mail", key="k", priority=3, headers={"trace": "1"})
    await store.push([pushed])
    [each] = await claim(store, lease=timedelta(seconds=7))
    assert (each.id, each.queue, each.payload, each.kind, each.key) == (pushed.id, ORDERS, b"\x00\xff", "mail", "k")
    assert (each.priority, dict(each.headers), each.attempt) == (3, {"trace": "1"}, 1)
    assert each.created_at == each.due_at == each.entered_at == clock.now()
    assert each.expires_at == clock.now() + timedelta(seconds=7)
    assert each.retry_of is None


async def test_the_lease_is_the_queue_s_unless_the_claim_says(store, clock):
    await store.configure(ORDERS, {"lease": 90})
    await store.push([message()])
    [each] = await claim(store)
    assert each.expires_at == clock.now() + timedelta(seconds=90)


@pytest.mark.parametrize("key", [None, "k"])
async def test_ask_again_is_when_a_backoff_ends(store, clock, key):
    await store.push([message(key=key)])
    [delivered] = await claim(store)
    await settle(store, failed(delivered, after=12))
    assert (await nothing(store)).ask_again == clock.now() + timedelta(seconds=12)
    clock.move(seconds=12)
    assert len(await claim(store)) == 1


@pytest.mark.parametrize("key", [None, "k"])
async def test_ask_again_is_when_a_lease_expires(store, clock, key):
    await store.push([message(key=key)])
    await claim(store)
    assert (await nothing(store)).ask_again == clock.now() + timedelta(seconds=30)


async def test_a_paused_queue_gives_nothing_and_says_never(store):
    await store.push([message()])
    await store.pause(ORDERS, True)
    assert (await nothing(store)).ask_again is None
    await store.pause(ORDERS, False)
    assert len(await claim(store)) == 1


async def test_a_claim_that_meets_only_skips_goes_on(store):
    pushed = messages(3)
    await store.push(pushed)
    await store.cancel([pushed[0].id, pushed[1].id], "default")
    assert payloads(await claim(store, messages=1)) == [b"2"]


async def test_wants_in_one_call_are_served_in_turn(store):
    await store.push(messages(3))
    first, second, third = await store.claim([want(messages=2), want(messages=2), want(messages=2)])
    assert isinstance(first, Claimed)
    assert len(first.deliveries) == 2
    assert isinstance(second, Claimed)
    assert len(second.deliveries) == 1
    assert isinstance(third, Nothing)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"queues": ()}, "queues"),
        ({"queues": ("q",) * 1001}, "queues"),
        ({"queues": ("",)}, "queue"),
        ({"messages": 0}, "messages"),
        ({"messages": 10_001}, "messages"),
        ({"lanes": 0}, "lanes"),
        ({"lease": timedelta(0)}, "lease"),
        ({"group": ""}, "group"),
    ],
)
def test_a_bad_want_names_its_field(options, field):
    with pytest.raises(Invalid) as raised:
        Want(**{"token": LeaseToken("t"), "queues": (ORDERS,), **options})
    assert raised.value.field == field


async def test_a_want_that_met_only_dead_messages_holds_a_lease_when_it_asks_again(store, clock):
    """A waiter asks again with the same token."""
    asked = want()
    await store.push([message(ttl=timedelta(seconds=5))])
    clock.move(seconds=10)
    [empty] = await store.claim([asked])
    assert isinstance(empty, Nothing)
    await store.push([message(payload=b"2")])
    [claimed] = await store.claim([asked])
    assert payloads(list(claimed.deliveries)) == [b"2"]
    assert await answers(store, *map(done, claimed.deliveries)) == ["settled"]


async def test_all_that_time_has_changed_comes_before_a_claim(store, clock):
    """A group joins its second queue, both have something due, and a lease of its was lost: all in one claim."""
    soon = clock.now() + timedelta(seconds=5)
    await store.push(
        [message("a", b"0"), message("a", b"1", due_at=soon), message("b", b"2"), message("b", b"3", due_at=soon)]
    )
    assert payloads(await claim(store, "a", group="g")) == [b"0"]
    clock.move(seconds=31)
    taken = await claim(store, "a", "b", group="g")
    assert [(each.queue, each.payload) for each in taken] == [("a", b"0"), ("a", b"1"), ("b", b"2"), ("b", b"3")]


async def test_a_claim_looks_no_further_into_a_lane_than_it_has_room_for(store, clock):
    """What is behind the run stays as it is, also if its time to live is over: others may ask how it stands."""
    behind = message(key="k", ttl=timedelta(seconds=20))
    await store.push([message(), message(key="k"), behind])
    clock.move(seconds=31)
    assert len(await claim(store, messages=2)) == 2
    [job] = await store.jobs([behind.id])
    assert (job.state, job.reason) == (JobState.QUEUED, None)
